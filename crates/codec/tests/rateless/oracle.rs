//! Decoding as slow and plain as can be: what all decoders are compared with.

use cauchyfs_codec::rateless::RandomCode;

/// Returns the source packets, or the rank of the packets if that is too low.
pub(crate) fn decode(code: RandomCode, received: &[(u64, Vec<u8>)]) -> Result<Vec<Vec<u8>>, usize> {
    let k = code.source_packets();
    let mut equations: Vec<(Vec<bool>, Vec<u8>)> = received
        .iter()
        .map(|(number, packet)| {
            let rows = code.rows(&[*number]);
            let row = (0..k).map(|column| rows.at(0, column)).collect();
            (row, packet.clone())
        })
        .collect();
    let mut rank = 0;
    for column in 0..k {
        let Some(pivot) = (rank..equations.len()).find(|&row| equations[row].0[column]) else {
            continue;
        };
        equations.swap(rank, pivot);
        let (row, packet) = equations[rank].clone();
        for (index, equation) in equations.iter_mut().enumerate() {
            if index != rank && equation.0[column] {
                for (bit, other) in equation.0.iter_mut().zip(&row) {
                    *bit ^= other;
                }
                for (byte, other) in equation.1.iter_mut().zip(&packet) {
                    *byte ^= other;
                }
            }
        }
        rank += 1;
    }
    if rank < k {
        return Err(rank);
    }
    Ok(equations
        .into_iter()
        .take(k)
        .map(|equation| equation.1)
        .collect())
}

/// Returns a coded packet, by the definition.
pub(crate) fn encode(code: RandomCode, number: u64, sources: &[Vec<u8>]) -> Vec<u8> {
    let rows = code.rows(&[number]);
    let mut packet = vec![0; sources[0].len()];
    for (column, source) in sources.iter().enumerate() {
        if rows.at(0, column) {
            for (byte, other) in packet.iter_mut().zip(source) {
                *byte ^= other;
            }
        }
    }
    packet
}
