// A thread pool for one job at a time. The tasks of a job are divided into one queue of neighbouring tasks per thread.
// A thread processes its own queue in ascending order, which suits the CPU's prefetcher, and then takes tasks of other
// queues. So a thread that gets no core, because another process computes, does not delay the job.
#pragma once

#include <sched.h>
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace pool {

using Task = void (*)(const void* job, int64_t index);

constexpr int64_t kMaxThreads = 256;
constexpr int kSpins = 2000;      // about 30 us: longer than the gap between two operations of a step
constexpr int kWaitSpins = 4000;  // after these, the caller yields its core to a thread that still works

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

class Pool {
public:
    void set_threads(int count) {
        while (num_threads() < std::min<int64_t>(count, kMaxThreads))
            threads_.emplace_back([this, seen = epoch_.load(), own = num_threads()] { work(seen, own); }).detach();
    }

    int64_t num_threads() const { return static_cast<int64_t>(threads_.size()) + 1; }

    // From now on each job uses fewer threads: num_threads() - sum(busy_cores) / share, but at least min_threads. The
    // counts are read when the job starts.
    void leave_cores(const int32_t* busy_cores, int64_t count, int64_t share, int64_t min_threads) {
        const std::lock_guard lock(running_);
        busy_cores_ = busy_cores;
        num_busy_counts_ = count;
        share_ = share;
        min_threads_ = min_threads;
    }

    // Calls task(job, index) for every index below count; returns when all are done. Thread-safe: jobs run one by one.
    void run(Task task, const void* job, int64_t count) {
        const std::lock_guard lock(running_);
        const int64_t active_threads = available_threads();
        if (count == 1 || active_threads == 1) {
            for (int64_t i = 0; i < count; ++i) task(job, i);
            return;
        }
        task_ = task;
        job_ = job;
        if (active_threads_.exchange(static_cast<int32_t>(active_threads)) != active_threads)
            active_threads_.notify_all();
        done_.store(0, std::memory_order_relaxed);
        const uint32_t epoch = epoch_.load(std::memory_order_relaxed) + 1;
        for (int64_t i = 0; i < active_threads; ++i)
            queues_[i].fill(epoch, count * i / active_threads, count * (i + 1) / active_threads);
        epoch_.store(epoch);
        epoch_.notify_all();
        run_tasks(epoch, 0);
        for (int spins = 0; done_.load(std::memory_order_acquire) < count; ++spins)
            spins < kWaitSpins ? pause() : static_cast<void>(sched_yield());
    }

private:
    // Neighbouring tasks. `remaining` holds the epoch of the job beside the number of remaining tasks, so that a thread
    // that wakes late cannot take a task of the next job.
    struct alignas(64) WorkQueue {
        std::atomic<uint64_t> remaining{0};
        int64_t end = 0;

        void fill(uint32_t epoch, int64_t first, int64_t last) {
            end = last;
            remaining.store(uint64_t{epoch} << 32 | static_cast<uint64_t>(last - first), std::memory_order_release);
        }

        // The next task's index, or -1.
        int64_t take(uint32_t epoch) {
            uint64_t seen = remaining.load(std::memory_order_acquire);
            while (seen >> 32 == epoch && static_cast<uint32_t>(seen) > 0)
                if (remaining.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel))
                    return end - static_cast<uint32_t>(seen);
            return -1;
        }
    };

    int64_t available_threads() const {
        int64_t busy = 0;
        for (int64_t i = 0; i < num_busy_counts_; ++i) busy += __atomic_load_n(busy_cores_ + i, __ATOMIC_RELAXED);
        return std::max(std::min(min_threads_, num_threads()), num_threads() - (busy + share_ - 1) / share_);
    }

    // The loop of a thread. `own`: the index of its queue; it sleeps while there are no more active threads than that.
    void work(uint32_t seen, int64_t own) {
        for (;;) {
            for (int32_t active; own >= (active = active_threads_.load());) active_threads_.wait(active);
            for (int spins = 0; spins < kSpins && epoch_.load(std::memory_order_acquire) == seen; ++spins) pause();
            epoch_.wait(seen);
            seen = epoch_.load(std::memory_order_acquire);
            run_tasks(seen, own);
        }
    }

    void run_tasks(uint32_t epoch, int64_t own) {
        const int64_t active_threads = active_threads_.load(std::memory_order_relaxed);
        int64_t finished = 0;
        for (int64_t i = 0; i < active_threads; ++i) {
            WorkQueue& queue = queues_[(own + i) % active_threads];
            for (int64_t index; (index = queue.take(epoch)) >= 0; ++finished) task_(job_, index);
        }
        if (finished) done_.fetch_add(finished, std::memory_order_release);
    }

    std::mutex running_;
    std::vector<std::thread> threads_;  // without the caller's
    WorkQueue queues_[kMaxThreads];
    alignas(64) std::atomic<uint32_t> epoch_{0};  // number of the job
    alignas(64) std::atomic<int64_t> done_{0};    // finished tasks of the job
    std::atomic<int32_t> active_threads_{1};      // of the last job
    Task task_ = nullptr;
    const void* job_ = nullptr;
    const int32_t* busy_cores_ = nullptr;
    int64_t num_busy_counts_ = 0, share_ = 1, min_threads_ = 1;
};

inline Pool& shared() {
    static Pool* pool = new Pool;  // never destroyed: its threads outlive main
    return *pool;
}

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

// Calls body(index) for every index below count, on all threads.
template <class Body>
void parallel_for(int64_t count, const Body& body) {
    if (Alone::is_alone()) {
        for (int64_t i = 0; i < count; ++i) body(i);
        return;
    }
    shared().run([](const void* job, int64_t index) { (*static_cast<const Body*>(job))(index); }, &body, count);
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
