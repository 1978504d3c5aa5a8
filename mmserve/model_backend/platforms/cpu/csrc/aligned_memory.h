// Uninitialised arrays for intermediate results, aligned to cache lines: a vector that crosses a line is read twice.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace memory {

constexpr size_t kLine = 64;

struct Free {
    void operator()(void* memory) const { std::free(memory); }
};

template <class T>
using Array = std::unique_ptr<T[], Free>;

template <class T>
Array<T> allocate(int64_t count) {
    const size_t lines = (static_cast<size_t>(count) * sizeof(T) + kLine - 1) / kLine;
    void* memory = std::aligned_alloc(kLine, std::max<size_t>(lines, 1) * kLine);
    if (!memory) throw std::bad_alloc();
    return Array<T>(static_cast<T*>(memory));
}

// An array that is reused by later calls and replaced when a call needs a larger one. Its content is not kept.
template <class T>
class ReusableArray {
public:
    T* at_least(int64_t count) {
        if (count > count_) {
            array_ = allocate<T>(count);
            count_ = count;
        }
        return array_.get();
    }

    T* get() const { return array_.get(); }

private:
    Array<T> array_;
    int64_t count_ = 0;
};

// `size` uninitialised numbers, valid until the same thread asks again for the same purpose. The type is a part of the
// array's name: builds for several instruction sets, loaded into one process, share arrays of the same name.
template <class Purpose, class Number>
Number* scratch(int64_t size) {
    static thread_local ReusableArray<Number> array;
    return array.at_least(size);
}

}  // namespace memory
