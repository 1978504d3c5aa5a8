// Threads that share the pieces of one job. Each begins with neighbours of its own, in ascending order, for a CPU foresees
// what is read in that order, and then does what others have not taken: a helper that has no core to run on, because
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

constexpr int64_t kMaxThreads = 256;
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
        while (threads() < std::min<int64_t>(count, kMaxThreads))
            helpers_.emplace_back([this, seen = epoch_.load(), own = threads()] { help(seen, own); }).detach();
    }

    int64_t threads() const { return static_cast<int64_t>(helpers_.size()) + 1; }

    // From now on fewer compute, but at least so many: fewer by a part, one of `among`, of what the numbers in `taken` are
    // together at that moment.
    void leave(const int32_t* taken, int64_t count, int64_t among, int64_t least) {
        const std::lock_guard turn(running_);
        taken_ = taken;
        taken_count_ = count;
        among_ = among;
        least_ = least;
    }

    // piece(job, index) for every index below count; returns when all are done. Callers take turns.
    void run(Piece piece, const void* job, int64_t count) {
        const std::lock_guard turn(running_);
        const int64_t sharers = threads_left();
        if (count == 1 || sharers == 1) {
            for (int64_t i = 0; i < count; ++i) piece(job, i);
            return;
        }
        piece_ = piece;
        job_ = job;
        if (sharers_.exchange(static_cast<int32_t>(sharers)) != sharers) sharers_.notify_all();
        done_.store(0, std::memory_order_relaxed);
        const uint32_t epoch = epoch_.load(std::memory_order_relaxed) + 1;
        for (int64_t i = 0; i < sharers; ++i) shares_[i].give(epoch, count * i / sharers, count * (i + 1) / sharers);
        epoch_.store(epoch);
        epoch_.notify_all();
        take_part(epoch, 0);
        for (int spins = 0; done_.load(std::memory_order_acquire) < count; ++spins)
            spins < kWaitSpins ? pause() : static_cast<void>(sched_yield());
    }

private:
    // Neighbouring pieces. `left` holds the job's number beside the count of pieces left, so that a late helper can take
    // none of the next job.
    struct alignas(64) Share {
        std::atomic<uint64_t> left{0};
        int64_t end = 0;

        void give(uint32_t epoch, int64_t first, int64_t last) {
            end = last;
            left.store(uint64_t{epoch} << 32 | static_cast<uint64_t>(last - first), std::memory_order_release);
        }

        // The next piece's index, or -1.
        int64_t take(uint32_t epoch) {
            uint64_t seen = left.load(std::memory_order_acquire);
            while (seen >> 32 == epoch && static_cast<uint32_t>(seen) > 0)
                if (left.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel))
                    return end - static_cast<uint32_t>(seen);
            return -1;
        }
    };

    int64_t threads_left() const {
        int64_t taken = 0;
        for (int64_t i = 0; i < taken_count_; ++i) taken += __atomic_load_n(taken_ + i, __ATOMIC_RELAXED);
        return std::max(std::min(least_, threads()), threads() - (taken + among_ - 1) / among_);
    }

    void help(uint32_t seen, int64_t own) {
        for (;;) {
            for (int32_t sharers; own >= (sharers = sharers_.load());) sharers_.wait(sharers);
            for (int spins = 0; spins < kSpins && epoch_.load(std::memory_order_acquire) == seen; ++spins) pause();
            epoch_.wait(seen);
            seen = epoch_.load(std::memory_order_acquire);
            take_part(seen, own);
        }
    }

    void take_part(uint32_t epoch, int64_t own) {
        const int64_t sharers = sharers_.load(std::memory_order_relaxed);
        int64_t finished = 0;
        for (int64_t i = 0; i < sharers; ++i) {
            Share& share = shares_[(own + i) % sharers];
            for (int64_t index; (index = share.take(epoch)) >= 0; ++finished) piece_(job_, index);
        }
        if (finished) done_.fetch_add(finished, std::memory_order_release);
    }

    std::mutex running_;
    std::vector<std::thread> helpers_;
    Share shares_[kMaxThreads];
    alignas(64) std::atomic<uint32_t> epoch_{0};
    alignas(64) std::atomic<int64_t> done_{0};
    std::atomic<int32_t> sharers_{1};  // of the last job; helpers beyond them sleep
    Piece piece_ = nullptr;
    const void* job_ = nullptr;
    const int32_t* taken_ = nullptr;
    int64_t taken_count_ = 0, among_ = 1, least_ = 1;
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
