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
constexpr int kWaitSpins = 4000;  // after these, a waiting thread yields its core to a working one

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

// One turn of a waiting loop, after `spins` turns.
inline void pause_or_yield(int spins) {
    spins < kWaitSpins ? pause() : static_cast<void>(sched_yield());
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
        for (int spins = 0; done_.load(std::memory_order_acquire) < count; ++spins) pause_or_yield(spins);
    }

    // How many threads a job would use that starts now.
    int64_t num_available_threads() {
        const std::lock_guard lock(running_);
        return available_threads();
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

}  // namespace pool
