// Jobs that follow each other without a thread that starts them. Every thread runs the same function (see `together`), in which
// each parallel_for is a job: the threads share its tasks, and none goes on before all are done. What stands between two jobs
// is executed by each thread, so it may write nothing but the thread's own memory. It must not read what tasks have written
// either: a thread that got no core for a while finds jobs without tasks left, and passes them while others compute later
// ones. Such reading is done in BeforeTasks (parallel.h).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <utility>

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

// Neighbouring tasks: [first, end).
struct TaskRange {
    int64_t first, end;
};

// What the threads of a team share.
struct Team {
    explicit Team(int64_t threads) : threads(threads) {}

    // Neighbouring tasks of one job: the job's number, and where those that remain begin and end. No thread fills a queue: with an
    // earlier job's number it has all tasks.
    struct alignas(64) WorkQueue {
        std::atomic<uint64_t> remaining{0};

        // Half of the tasks of `all` that remain, and at least one: the last of them or the first. Or none.
        TaskRange take(uint64_t job, const TaskRange& all, bool last) {
            uint64_t seen = remaining.load(std::memory_order_acquire);
            while (seen >> 2 * kBits <= job) {
                const bool is_new = seen >> 2 * kBits < job;
                const int64_t first = is_new ? 0 : seen >> kBits & kMask, end = is_new ? all.end - all.first : seen & kMask;
                if (first == end) break;
                const int64_t count = std::max<int64_t>(1, (end - first) / 2), from = last ? end - count : first, to = from + count;
                const uint64_t left = static_cast<uint64_t>(last ? first : to) << kBits | static_cast<uint64_t>(last ? from : end);
                if (remaining.compare_exchange_weak(seen, job << 2 * kBits | left, std::memory_order_acq_rel))
                    return {all.first + from, all.first + to};
            }
            return {0, 0};
        }

    private:
        static constexpr int kBits = 24;  // of a task's number. The job's has 16
        static constexpr uint64_t kMask = (1 << kBits) - 1;
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

    // Every member calls this with the same count and a body that does the same: body(first, end) for neighbouring tasks. Of its
    // own queue a thread takes the first half of what remains, of another one's the last half, so that both read memory in
    // order. On Zen 4, where two cores had no cache in common, a decode step takes 2 % less time than with a quarter of its own and
    // single ones of another's, the next ones.
    template <class Body>
    void run_job(int64_t count, const Body& body) {
        ++job_;
        end_ += count;
        int64_t finished = 0;
        const Alone alone;
        for (int64_t i = 0; i < team_.threads; ++i) {
            const int64_t queue = (own_ + i) % team_.threads;
            const TaskRange all{count * queue / team_.threads, count * (queue + 1) / team_.threads};
            for (TaskRange tasks; (tasks = team_.queues[queue].take(job_, all, i > 0)).first < tasks.end;) {
                if (!finished) prepare();
                body(tasks.first, tasks.end);
                finished += tasks.end - tasks.first;
            }
        }
        if (finished) team_.done.fetch_add(finished, std::memory_order_release);
        wait();
    }

    // Of memory that a job after the next one reads, in parts of part_nbytes that are divided among the threads as its tasks are,
    // this thread reads the beginning of its own part into its second-level cache. It does so while it waits, from the end of the
    // next job on.
    void read_ahead(const void* memory, int64_t part_nbytes, int64_t parts) {
        const char* first = static_cast<const char*>(memory) + part_nbytes * (parts * own_ / team_.threads);
        const int64_t nbytes = part_nbytes * (parts * (own_ + 1) / team_.threads - parts * own_ / team_.threads);
        next_ = {first, first + std::min(nbytes, kReadNbytes)};
    }

    void add(Preparation* preparation) { preparations_[num_preparations_++] = preparation; }
    void remove_last() { --num_preparations_; }

private:
    // Memory that is not read yet.
    struct Unread {
        const char *at = nullptr, *end = nullptr;

        // Where its first lines end.
        const char* after(int64_t lines) const { return at + std::min<int64_t>(end - at, lines * memory::kLine); }
    };

    static constexpr int64_t kMostPreparations = 4;
    static constexpr int64_t kReadNbytes = 256 << 10;  // half of a small second-level cache
    static constexpr int64_t kLines = 4;              // read before the thread looks whether it still has to wait
    static constexpr int64_t kPrefetchedLines = 16;   // fewer than a Zen 4 core has buffers for: 24 were measured

    // Until all tasks so far are done.
    void wait() {
        if (next_.at) unread_ = std::exchange(next_, {});
        for (int spins = 0; team_.done.load(std::memory_order_acquire) < end_; ++spins)
            if (!read_some()) pause_or_yield(spins);
    }

    // By loads. Of many prefetches a CPU may drop most: of 128, Zen 4 kept none to half, depending on the kind.
    bool read_some() {
        if (unread_.at == unread_.end) return false;
        for (const char* end = unread_.after(kLines); unread_.at < end; unread_.at += memory::kLine)
            static_cast<void>(*static_cast<const volatile char*>(unread_.at));
        return true;
    }

    // Meanwhile the first lines of the job's own memory arrive.
    void prepare() {
        for (const char *line = unread_.at, *end = unread_.after(kPrefetchedLines); line < end; line += memory::kLine)
            __builtin_prefetch(line);
        for (int64_t i = 0; i < num_preparations_; ++i) {
            Preparation& each = *preparations_[i];
            if (!each.is_made) each.call(each.function);
            each.is_made = true;
        }
    }

    Team& team_;
    const int64_t own_;
    uint64_t job_ = 0;   // number of the last job
    int64_t end_ = 0;    // tasks of all jobs up to it
    Preparation* preparations_[kMostPreparations];
    int64_t num_preparations_ = 0;
    Unread unread_, next_;
};

}  // namespace pool
