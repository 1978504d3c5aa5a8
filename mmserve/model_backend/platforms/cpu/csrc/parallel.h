// What kernels divide their work with.
#pragma once

#include <algorithm>
#include <cstdint>

#include "team.h"
#include "thread_pool.h"

namespace pool {

// Calls body(index) for every index below count, on all threads.
template <class Body>
void parallel_for(int64_t count, const Body& body) {
    if (Alone::is_alone()) {
        for (int64_t i = 0; i < count; ++i) body(i);
        return;
    }
    if (Member* member = Member::current())
        return member->run_job(count, [&](int64_t first, int64_t end) {
            for (; first < end; ++first) body(first);
        });
    shared().run([](const void* job, int64_t index) { (*static_cast<const Body*>(job))(index); }, &body, count);
}

// Calls body(first, end) for neighbouring indices, so that all below count are among them once, on all threads.
template <class Body>
void parallel_for_ranges(int64_t count, const Body& body) {
    if (Member* member = Member::current(); member && !Alone::is_alone()) return member->run_job(count, body);
    parallel_for(count, [&](int64_t index) { body(index, index + 1); });
}

// Calls body() on every thread that is free now: see team.h. Returns when all have returned.
template <class Body>
void together(const Body& body) {
    const int64_t threads = shared().num_available_threads();
    Team team(threads);
    parallel_for(threads, [&](int64_t own) {
        Member member(team, own);
        body();
    });
}

// While one exists, each thread of a team calls make() before its first task, so that it reads what the tasks of earlier jobs
// have written. Outside of a team make() is called at once. One that is created later is destroyed earlier.
template <class Make>
class BeforeTasks {
public:
    explicit BeforeTasks(const Make& make) : make_(make) {
        if (is_added_)
            Member::current()->add(&preparation_);
        else
            make_();
    }
    ~BeforeTasks() {
        if (is_added_) Member::current()->remove_last();
    }
    BeforeTasks(const BeforeTasks&) = delete;
    BeforeTasks& operator=(const BeforeTasks&) = delete;

private:
    const Make make_;
    const bool is_added_ = Member::current() && !Alone::is_alone();
    Preparation preparation_{[](const void* make) { (*static_cast<const Make*>(make))(); }, &make_, false};
};

// Calls body() on one thread.
template <class Body>
void once(const Body& body) {
    parallel_for(1, [&](int64_t) { body(); });
}

constexpr int64_t kBlockRows = 64;             // of a thread, at most
constexpr int64_t kManyBlocks = 8;             // of a thread: it waits for an eighth of its time at most
constexpr int64_t kMinTaskElements = 1 << 14;  // smaller tasks are not worth handing to another thread

// Calls body(row) for every row of `elements` numbers, on all threads.
template <class Body>
void parallel_for_rows(int64_t count, int64_t elements, const Body& body) {
    const int64_t task_rows = std::max<int64_t>(1, kMinTaskElements / elements);
    parallel_for((count + task_rows - 1) / task_rows, [&](int64_t task) {
        const int64_t end = std::min(count, (task + 1) * task_rows);
        for (int64_t row = task * task_rows; row < end; ++row) body(row);
    });
}

// Calls body(first, count) for blocks of rows, whose intermediate results stay in the caches. If a thread gets many blocks, each
// is a task of one thread, so that threads wait for each other less often. Else it is one block after the other, and body's own
// jobs have all threads: one that gets less of its core than another would delay it by what is left of a whole block.
template <class Body>
void for_each_block(int64_t rows, const Body& body) {
    const int64_t threads = shared().num_threads(), most = kBlockRows * threads, rounds = (rows + most - 1) / most;
    const bool many = rounds >= kManyBlocks;
    const int64_t blocks = many ? rounds * threads : rounds;
    const auto run = [&](int64_t block) {
        const int64_t first = rows * block / blocks;
        body(first, rows * (block + 1) / blocks - first);
    };
    if (!many) {
        for (int64_t block = 0; block < blocks; ++block) run(block);
        return;
    }
    parallel_for(blocks, [&](int64_t block) {
        const Alone alone;
        run(block);
    });
}

}  // namespace pool
