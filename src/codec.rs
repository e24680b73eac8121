//! Erasure coding: pure arithmetic over GF(2⁸), no files, no clock, no threads.
