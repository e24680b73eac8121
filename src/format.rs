//! Every structure that lies on disk: encoders and decoders that never panic.
