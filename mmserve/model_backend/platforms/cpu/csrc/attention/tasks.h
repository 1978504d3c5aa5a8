// Which tasks of threads a step's attention becomes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "attention/job.h"
#include "attention/pieces.h"

namespace attention {

// Which keys [from, end) the rows of a tile attend to. Key tiles lie at multiples of kKeyTile, so that a row's sums do not
// depend on the rows computed with it.
inline Reach reach_of(const Job& job, const int64_t* t) {
    const int64_t from = job.window ? std::max<int64_t>(0, t[2] + 1 - job.window) / kKeyTile * kKeyTile : 0;
    return {from, job.ends ? job.ends[t[0] + t[1] - 1] : t[2] + t[1]};  // the last token attends furthest
}

// Some KV heads of a piece.
struct Task {
    const Piece* piece;
    int64_t first_head, heads;
    Reach keys;         // of the piece's tile: all that it attends to, or a segment
    int64_t stored_at;  // of a segment: the row where what its first row finds is stored; else -1

    bool is_segment() const { return stored_at >= 0; }
    bool is_of_same_rows(const Task& other) const { return piece == other.piece && first_head == other.first_head; }
    int64_t rows(const Job& job) const { return heads * piece->count * piece->tiles[1] * (job.heads / job.kv_heads); }
};

constexpr int64_t kEnoughTasks = 4;  // of a thread

// A piece of few rows, such as a decoding sequence, is one task with all heads: their keys are neighbours in memory,
// which is then read in order. A piece of many rows is one task per KV head. Where that makes few tasks, threads would
// wait for each other: then each segment of a long sequence is a task, and neighbouring ones are those of the same rows.
inline std::vector<Task> tasks_of(const Job& job, const std::vector<Piece>& pieces, int64_t threads) {
    const auto has_few_rows = [&](const Piece& piece) { return piece.count * piece.tiles[1] * job.heads <= kMaxRows; };
    const bool enough_pieces = static_cast<int64_t>(pieces.size()) >= threads;
    int64_t num_whole = 0, stored = 0;
    for (const Piece& piece : pieces) num_whole += enough_pieces && has_few_rows(piece) ? 1 : job.kv_heads;
    const bool few_tasks = threads > 1 && num_whole < kEnoughTasks * threads;
    std::vector<Task> tasks;
    for (const Piece& piece : pieces) {
        const Reach reach = reach_of(job, piece.tiles);
        const bool divided = few_tasks && piece.count == 1 && reach.end - reach.first > kSegment;
        const int64_t heads = (divided || enough_pieces) && has_few_rows(piece) ? job.kv_heads : 1;
        for (int64_t head = 0; head < job.kv_heads; head += heads)
            for (int64_t first = reach.first, end; first < reach.end; first = end) {
                end = divided ? std::min(reach.end, (first / kSegment + 1) * kSegment) : reach.end;
                tasks.push_back({&piece, head, heads, {first, end}, divided ? stored : -1});
                stored += divided ? tasks.back().rows(job) : 0;
            }
    }
    return tasks;
}

}  // namespace attention
