//! The members of one volume: superblocks, epochs, liveness, parallel I/O over all of them.
