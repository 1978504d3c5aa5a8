// Threads that share the pieces of one job. Whoever is free takes the next piece, in ascending order, for a CPU foresees
// what is read in that order; and the caller does what nobody else has taken: a helper that has no core to run on, because
// another process computes, holds nobody up.
#pragma once

#include <sched.h>
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace pool {

using Piece = void (*)(const void* job, int64_t index);

constexpr int kSpins = 2000;      // about 30 us: longer than the gap between two operations of a step
constexpr int kWaitSpins = 4000;  // then the core is offered to the helper that still works

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

class Pool {
public:
    void set_threads(int count) {
        while (static_cast<int>(helpers_.size()) < count - 1)
            helpers_.emplace_back([this, seen = epoch_.load()]() mutable { help(seen); }).detach();
    }

    int threads() const { return static_cast<int>(helpers_.size()) + 1; }

    // piece(job, index) for every index below count; returns when all are done. Callers take turns.
    void run(Piece piece, const void* job, int64_t count) {
        const std::lock_guard turn(running_);
        if (count == 1 || helpers_.empty()) {
            for (int64_t i = 0; i < count; ++i) piece(job, i);
            return;
        }
        piece_ = piece;
        job_ = job;
        count_ = count;
        done_.store(0, std::memory_order_relaxed);
        const uint32_t epoch = epoch_.load(std::memory_order_relaxed) + 1;
        left_.store(uint64_t{epoch} << 32 | static_cast<uint64_t>(count), std::memory_order_release);
        epoch_.store(epoch);
        epoch_.notify_all();
        take_part(epoch);
        for (int spins = 0; done_.load(std::memory_order_acquire) < count; ++spins)
            spins < kWaitSpins ? pause() : static_cast<void>(sched_yield());
    }

private:
    void help(uint32_t seen) {
        for (;;) {
            for (int spins = 0; spins < kSpins && epoch_.load(std::memory_order_acquire) == seen; ++spins) pause();
            epoch_.wait(seen);
            seen = epoch_.load(std::memory_order_acquire);
            take_part(seen);
        }
    }

    // left_ holds the job's number beside the count of pieces left, so that a late helper can take none of the next
    // job.
    void take_part(uint32_t epoch) {
        uint64_t left = left_.load(std::memory_order_acquire);
        while (left >> 32 == epoch && static_cast<uint32_t>(left) > 0) {
            if (!left_.compare_exchange_weak(left, left - 1, std::memory_order_acq_rel)) continue;
            piece_(job_, count_ - static_cast<uint32_t>(left));
            done_.fetch_add(1, std::memory_order_release);
            left = left_.load(std::memory_order_acquire);
        }
    }

    std::mutex running_;
    std::vector<std::thread> helpers_;
    alignas(64) std::atomic<uint64_t> left_{0};
    alignas(64) std::atomic<uint32_t> epoch_{0};
    alignas(64) std::atomic<int64_t> done_{0};
    Piece piece_ = nullptr;
    const void* job_ = nullptr;
    int64_t count_ = 0;
};

inline Pool& shared() {
    static Pool* pool = new Pool;  // never destroyed: helpers outlive main
    return *pool;
}

// work(index) for every index below count, over all threads.
template <class Work>
void each(int64_t count, const Work& work) {
    shared().run([](const void* job, int64_t index) { (*static_cast<const Work*>(job))(index); }, &work, count);
}

constexpr int64_t kPieceNumbers = 1 << 14;  // worth handing to another thread

// work(row) for every row of so many numbers.
template <class Work>
void each_row(int64_t count, int64_t numbers, const Work& work) {
    const int64_t in_piece = std::max<int64_t>(1, kPieceNumbers / numbers);
    each((count + in_piece - 1) / in_piece, [&](int64_t piece) {
        const int64_t end = std::min(count, (piece + 1) * in_piece);
        for (int64_t row = piece * in_piece; row < end; ++row) work(row);
    });
}

}  // namespace pool
