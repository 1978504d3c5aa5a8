// Which tiles are computed together: those of decoding sequences whose first KV blocks are the same (a shared prefix), so
// that these are read once for all of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "attention/job.h"

namespace attention {

// `count` neighbouring tiles. If there are several, each has one token, and the first `shared` tokens of all sequences,
// whole key tiles, are in the same blocks.
struct Piece {
    const int64_t* tiles;
    int64_t count, shared;

    const int64_t* tile(int64_t index) const { return tiles + 4 * index; }
};

// Tokens of whole key tiles that both tiles' sequences read from the same blocks.
inline int64_t shared_tokens(const Job& job, const int64_t* a, const int64_t* b) {
    const int64_t *first = job.tables + a[3] * job.table_stride, *second = job.tables + b[3] * job.table_stride;
    const int64_t most = std::min(a[2], b[2]) / kKeyTile * (kKeyTile / kBlock);
    const int64_t blocks = std::mismatch(first, first + most, second).first - first;
    return blocks * kBlock / kKeyTile * kKeyTile;
}

// The longest piece that begins with this tile. Each of its sequences shares at least half of its tokens: with less there is
// little to gain, and tasks of long and of short sequences would keep threads waiting.
inline Piece piece_from(const Job& job, const int64_t* tile, int64_t tiles) {
    Piece piece{tile, 1, 0};
    if (tile[1] != 1 || job.window || job.ends) return piece;  // its rows begin or end at different keys
    for (; piece.count < tiles; ++piece.count) {
        const int64_t* next = piece.tile(piece.count);
        const int64_t shared = next[1] == 1 ? shared_tokens(job, tile, next) : 0;
        if (!shared || 2 * shared < std::max(tile[2], next[2])) break;
        piece.shared = piece.count == 1 ? shared : std::min(piece.shared, shared);
    }
    return piece;
}

// Into how many parts of equal size so many tiles are cut. A task has all heads of a part, and each thread as many tasks
// as the others; where all heads of two tiles are too many rows, a task has one KV head.
inline int64_t num_parts(const Job& job, int64_t count, int64_t threads) {
    const auto divided = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
    if (2 * job.heads <= kMaxRows)
        return std::min(count, divided(divided(count, kMaxRows / job.heads), threads) * threads);
    const int64_t least = divided(count, kMaxRows * job.kv_heads / job.heads);
    return std::min(count, std::max(least, divided(2 * threads, job.kv_heads)));
}

inline std::vector<Piece> pieces_of(const Job& job, int64_t tiles, int64_t threads) {
    std::vector<Piece> pieces;
    pieces.reserve(tiles);
    for (int64_t i = 0; i < tiles;) {
        const Piece whole = piece_from(job, job.tiles + 4 * i, tiles - i);
        const int64_t parts = num_parts(job, whole.count, threads);
        for (int64_t part = 0; part < parts; ++part) {
            const int64_t first = whole.count * part / parts, end = whole.count * (part + 1) / parts;
            pieces.push_back({whole.tile(first), end - first, whole.shared});
        }
        i += whole.count;
    }
    return pieces;
}

}  // namespace attention
