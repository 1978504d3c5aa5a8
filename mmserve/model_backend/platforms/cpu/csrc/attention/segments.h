// What several threads find in the segments of long sequences, until it is added.
#pragma once

#include <type_traits>

#include "aligned_memory.h"
#include "attention/query_tile.h"
#include "attention/tasks.h"

namespace attention {

// Room for rows of segments, for one attention at a time.
class SegmentMemory {
public:
    // One thread calls this before others ask for rows.
    template <class Softmax>
    void reserve(int64_t rows, int64_t dim) {
        out_.at_least(rows * dim);
        softmax_.at_least(rows * sizeof(Softmax));
    }

    template <class Softmax>
    Found<Softmax> rows() const {
        static_assert(std::is_trivially_copyable_v<Softmax>);
        return {out_.get(), reinterpret_cast<Softmax*>(softmax_.get())};
    }

private:
    memory::ReusableArray<float> out_;
    memory::ReusableArray<unsigned char> softmax_;
};

// Adds the segments of each tile in their order, as one thread does that reads them all. store(task, rows) takes the sums.
template <class Softmax, class Store>
void add_segments(const Job& job, const std::vector<Task>& tasks, const Found<Softmax>& stored, const Store& store) {
    for (auto first = tasks.begin(); first != tasks.end();) {
        auto task = first + 1;
        if (first->is_segment()) {
            const auto rows = stored.from(first->stored_at, job.dim);
            for (; task != tasks.end() && task->is_of_same_rows(*first); ++task)
                for (int64_t r = 0; r < task->rows(job); ++r) {
                    const auto later = stored.from(task->stored_at + r, job.dim);
                    merge(rows.softmax[r], rows.out + r * job.dim, *later.softmax, later.out, job.dim);
                }
            store(*first, rows);
        }
        first = task;
    }
}

}  // namespace attention
