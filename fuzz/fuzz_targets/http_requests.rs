//! Requests for metrics under libFuzzer: an input is what a client sends, to a loopback address and to another one.

#![no_main]

use std::net::{IpAddr, Ipv4Addr};

use libfuzzer_sys::fuzz_target;

#[path = "../../src/control/metrics/request.rs"]
#[allow(dead_code, reason = "the product needs more of it")]
mod request;

use request::{MAX_BYTES, Refusal, judge};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

fuzz_target!(|input: &[u8]| {
    let input = &input[..input.len().min(MAX_BYTES)];
    let (local, remote) = (judge(input, LOOPBACK), judge(input, OTHER));
    // They differ in the host that they take, and in nothing else.
    match (local, remote) {
        (Err(Refusal::Foreign), _) | (_, Err(Refusal::Foreign)) => {}
        (local, remote) => assert_eq!(local, remote),
    }
    if input.len() == MAX_BYTES {
        assert_ne!(local, Ok(None), "a request without an end is refused");
    }
    if let Ok(Some(_)) = remote {
        assert!(input.windows(8).any(|it| it == b"/metrics"));
        assert!(input.windows(5).any(|it| it.eq_ignore_ascii_case(b"host:")));
        // Bytes behind the request change nothing.
        let longer = [input, b"\0"].concat();
        assert_eq!(judge(&longer, OTHER), remote);
    }
});
