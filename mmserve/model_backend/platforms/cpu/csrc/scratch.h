// Memory for what a kernel keeps meanwhile. It begins at a cache line: a vector that lies across two lines is read twice.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace scratch {

constexpr size_t kLine = 64;

struct Free {
    void operator()(void* memory) const { std::free(memory); }
};

template <class T>
using Memory = std::unique_ptr<T[], Free>;

// Not initialised.
template <class T>
Memory<T> of(int64_t count) {
    const size_t lines = (static_cast<size_t>(count) * sizeof(T) + kLine - 1) / kLine;
    void* memory = std::aligned_alloc(kLine, std::max<size_t>(lines, 1) * kLine);
    if (!memory) throw std::bad_alloc();
    return Memory<T>(static_cast<T*>(memory));
}

// Memory that is kept for the next call, and replaced by a larger one where that asks for more.
template <class T>
class Kept {
public:
    T* at_least(int64_t count) {
        if (count > count_) {
            memory_ = of<T>(count);
            count_ = count;
        }
        return memory_.get();
    }

private:
    Memory<T> memory_;
    int64_t count_ = 0;
};

}  // namespace scratch
