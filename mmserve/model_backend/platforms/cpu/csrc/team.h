// Jobs that follow each other without a thread that starts them. Every thread runs the same function (see `together`), in which
// each parallel_for is a job: the threads share its tasks, and none goes on before all are done. What stands between two jobs
// is executed by each thread, so it may write nothing but the thread's own memory. It must not read what tasks have written
// either: a thread that got no core for a while finds jobs without tasks left, and passes them while others compute later
// ones. Such reading is done in BeforeTasks (parallel.h).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "aligned_memory.h"
#include "thread_pool.h"

namespace pool {

// While one exists, jobs of this thread run on it alone: a job's task may call functions that have jobs of their own.
class Alone {
public:
    Alone() : before_(is_alone()) { is_alone() = true; }
    ~Alone() { is_alone() = before_; }
    Alone(const Alone&) = delete;
    Alone& operator=(const Alone&) = delete;

    static bool& is_alone() {
        static thread_local bool alone = false;
        return alone;
    }

private:
    const bool before_;
};

// A function that a thread calls before the first task that it takes.
struct Preparation {
    void (*call)(const void* function);
    const void* function;
    bool is_made;
};

// What the threads of a team share.
struct Team {
    explicit Team(int64_t threads) : threads(threads) {}

    // Neighbouring tasks of one job, as in Pool. The number of the job is beside the number of tasks that remain. No thread
    // fills a queue: with an earlier job's number it has all tasks.
    struct alignas(64) WorkQueue {
        std::atomic<uint64_t> remaining{0};

        // The index of the next task of [first, end), or -1.
        int64_t take(uint32_t job, int64_t first, int64_t end) {
            uint64_t seen = remaining.load(std::memory_order_acquire);
            while (seen >> 32 <= job) {
                const int64_t left = seen >> 32 < job ? end - first : static_cast<uint32_t>(seen);
                if (left == 0) return -1;
                const uint64_t less = uint64_t{job} << 32 | static_cast<uint64_t>(left - 1);
                if (remaining.compare_exchange_weak(seen, less, std::memory_order_acq_rel)) return end - left;
            }
            return -1;
        }
    };

    const int64_t threads;
    WorkQueue queues[kMaxThreads];
    alignas(64) std::atomic<int64_t> done{0};  // finished tasks of all jobs
};

// One thread of a team.
class Member {
public:
    Member(Team& team, int64_t own) : team_(team), own_(own) { current() = this; }
    ~Member() { current() = nullptr; }
    Member(const Member&) = delete;
    Member& operator=(const Member&) = delete;

    // Of this thread, or null.
    static Member*& current() {
        static thread_local Member* member = nullptr;
        return member;
    }

    // Every member calls this with the same count and a body that does the same.
    template <class Body>
    void run_job(int64_t count, const Body& body) {
        ++job_;
        end_ += count;
        int64_t finished = 0;
        const Alone alone;
        for (int64_t i = 0; i < team_.threads; ++i) {
            const int64_t queue = (own_ + i) % team_.threads;
            const int64_t first = count * queue / team_.threads, end = count * (queue + 1) / team_.threads;
            for (int64_t index; (index = team_.queues[queue].take(job_, first, end)) >= 0; ++finished) {
                if (!finished) prepare();
                body(index);
            }
        }
        if (finished) team_.done.fetch_add(finished, std::memory_order_release);
        for (int spins = 0; team_.done.load(std::memory_order_acquire) < end_; ++spins)
            if (!fetch_some()) pause_or_yield(spins);
    }

    // Until the next call, this thread fetches its part of such memory into its second-level cache while it waits for others: what
    // a later job reads in parts of part_nbytes, which are divided among the threads as its tasks are.
    void fetch_while_waiting(const void* memory, int64_t part_nbytes, int64_t parts) {
        const char* from = static_cast<const char*>(memory);
        fetched_ = from + part_nbytes * (parts * own_ / team_.threads);
        fetch_end_ = std::min(from + part_nbytes * (parts * (own_ + 1) / team_.threads), fetched_ + kFetchedNbytes);
    }

    void add(Preparation* preparation) { preparations_[num_preparations_++] = preparation; }
    void remove_last() { --num_preparations_; }

private:
    static constexpr int64_t kMostPreparations = 4;
    static constexpr int64_t kFetchedNbytes = 256 << 10;  // half of a small second-level cache
    static constexpr int64_t kLines = 4;                  // fetched before the thread looks whether it still has to wait

    bool fetch_some() {
        if (fetched_ >= fetch_end_) return false;
        for (int64_t i = 0; i < kLines; ++i, fetched_ += memory::kLine) __builtin_prefetch(fetched_, 0, 2);
        return true;
    }

    void prepare() {
        for (int64_t i = 0; i < num_preparations_; ++i) {
            Preparation& each = *preparations_[i];
            if (!each.is_made) each.call(each.function);
            each.is_made = true;
        }
    }

    Team& team_;
    const int64_t own_;
    uint32_t job_ = 0;   // number of the last job
    int64_t end_ = 0;    // tasks of all jobs up to it
    Preparation* preparations_[kMostPreparations];
    int64_t num_preparations_ = 0;
    const char *fetched_ = nullptr, *fetch_end_ = nullptr;
};

}  // namespace pool
