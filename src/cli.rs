//! The command line: arguments, exit codes, daemon, control socket.
