//! Segments and stripes on the members of one volume.
