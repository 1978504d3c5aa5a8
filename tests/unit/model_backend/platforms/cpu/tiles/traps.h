// Runs the tile instructions of AMX on CPUs without them: each is an illegal instruction there, and the handler of that
// signal does what Intel's manual says. A few microseconds an instruction, for tests.
#pragma once

#include <signal.h>
#include <ucontext.h>
#include <atomic>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace traps {

inline std::atomic<int64_t> count{0};  // instructions so far

// Palette 1: eight tiles. The registers of one thread.
struct Tiles {
    uint8_t configuration[64] = {};
    uint8_t bytes[8][16][64] = {};

    bool is_configured() const { return configuration[0] == 1; }
    int rows(int tile) const { return configuration[48 + tile]; }
    int row_nbytes(int tile) const { return configuration[16 + 2 * tile] | configuration[17 + 2 * tile] << 8; }

    template <class Number>
    Number at(int tile, int row, int index) const {
        Number number;
        std::memcpy(&number, bytes[tile][row] + index * sizeof number, sizeof number);
        return number;
    }

    template <class Number>
    void put(int tile, int row, int index, Number number) {
        std::memcpy(bytes[tile][row] + index * sizeof number, &number, sizeof number);
    }
};

inline Tiles& tiles() {
    static thread_local Tiles tiles;
    return tiles;
}

inline void require(bool holds) {
    if (!holds) std::abort();
}

inline float flush(float x) {
    return std::fabs(x) < FLT_MIN ? std::copysign(0.f, x) : x;
}

inline float widen(uint16_t number) {
    const uint32_t bits = uint32_t{number} << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return flush(value);
}

// TDPBF16PS.
inline void multiply_bfloat16(Tiles& state, int sums, int x, int w) {
    for (int m = 0; m < state.rows(sums); ++m)
        for (int n = 0; n < state.row_nbytes(sums) / 4; ++n) {
            float of_even = 0.f, of_odd = 0.f;
            for (int k = 0; k < state.row_nbytes(x) / 4; ++k) {
                of_even = flush(std::fma(widen(state.at<uint16_t>(x, m, 2 * k)), widen(state.at<uint16_t>(w, k, 2 * n)), of_even));
                of_odd = flush(
                    std::fma(widen(state.at<uint16_t>(x, m, 2 * k + 1)), widen(state.at<uint16_t>(w, k, 2 * n + 1)), of_odd));
            }
            state.put(sums, m, n, flush(flush(state.at<float>(sums, m, n)) + flush(of_even + of_odd)));
        }
}

// TDPBUSD: bytes of x without a sign, of w with one. TDPBSSD: both with one; TDPBSUD: x with one, w without.
template <class Left, class Right>
inline void multiply_bytes(Tiles& state, int sums, int x, int w) {
    for (int m = 0; m < state.rows(sums); ++m)
        for (int n = 0; n < state.row_nbytes(sums) / 4; ++n) {
            auto sum = state.at<uint32_t>(sums, m, n);
            for (int k = 0; k < state.row_nbytes(x) / 4; ++k)
                for (int i = 0; i < 4; ++i)
                    sum += int32_t{state.at<Left>(x, m, 4 * k + i)} * int32_t{state.at<Right>(w, k, 4 * n + i)};
            state.put(sums, m, n, sum);
        }
}

// One instruction with a VEX prefix of three bytes and the second opcode map.
class Instruction {
public:
    explicit Instruction(ucontext_t* context) : gregs_(context->uc_mcontext.gregs) {
        at_ = reinterpret_cast<const uint8_t*>(gregs_[REG_RIP]);
        require(at_[0] == 0xc4 && (at_[1] & 0x1f) == 2);
        prefix_ = at_[2] & 3;
        opcode_ = at_[3];
        mode_ = at_[4] >> 6;
        reg_ = (at_[4] >> 3 & 7) | (at_[1] & 0x80 ? 0 : 8);
        rm_ = at_[4] & 7;
        last_ = ~(at_[2] >> 3) & 15;
        length_ = 5;
        if (mode_ != 3) read_address();
    }

    void run(Tiles& state) const {
        switch (opcode_ << 4 | prefix_) {
            case 0x490: return mode_ == 3 ? release(state) : configure(state);
            case 0x493: return clear(state);
            case 0x4b1:
            case 0x4b3: return load(state);
            case 0x4b2: return store(state);
            case 0x5c2: return multiply(state, multiply_bfloat16);
            case 0x5e0: return multiply(state, multiply_bytes<uint8_t, uint8_t>);
            case 0x5e1: return multiply(state, multiply_bytes<uint8_t, int8_t>);
            case 0x5e2: return multiply(state, multiply_bytes<int8_t, uint8_t>);
            case 0x5e3: return multiply(state, multiply_bytes<int8_t, int8_t>);
            default: std::abort();
        }
    }

    void skip() const { gregs_[REG_RIP] += length_; }

private:
    int64_t general(int number) const {
        constexpr int kPlaces[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                   REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
        return gregs_[kPlaces[number]];
    }

    void read_address() {
        int base = rm_ | (at_[1] & 0x20 ? 0 : 8);
        if (rm_ == 4) {
            const uint8_t sib = at_[length_++];
            base = (sib & 7) | (at_[1] & 0x20 ? 0 : 8);
            const int index = (sib >> 3 & 7) | (at_[1] & 0x40 ? 0 : 8);
            if (index != 4) stride_ = general(index) << (sib >> 6);
            require(mode_ != 0 || (sib & 7) != 5);
        }
        int32_t displacement = 0;
        if (mode_ == 1) displacement = static_cast<int8_t>(at_[length_++]);
        if (mode_ == 2 || (mode_ == 0 && rm_ == 5)) {
            std::memcpy(&displacement, at_ + length_, sizeof displacement);
            length_ += 4;
        }
        const bool from_here = mode_ == 0 && rm_ == 5;
        address_ = displacement + (from_here ? reinterpret_cast<int64_t>(at_) + length_ : general(base));
    }

    uint8_t* memory(int row) const { return reinterpret_cast<uint8_t*>(address_ + row * stride_); }

    void configure(Tiles& state) const {
        state = Tiles();
        std::memcpy(state.configuration, memory(0), 64);
        require(state.is_configured());
        for (int i = 1; i < 16; ++i) require(!state.configuration[i]);
        for (int tile = 0; tile < 16; ++tile)
            require(tile < 8 ? state.rows(tile) <= 16 && state.row_nbytes(tile) <= 64
                             : !state.rows(tile) && !state.row_nbytes(tile));
    }

    void release(Tiles& state) const { state = Tiles(); }

    void clear(Tiles& state) const {
        require(state.is_configured());
        std::memset(state.bytes[reg_], 0, sizeof state.bytes[reg_]);
    }

    void load(Tiles& state) const {
        clear(state);
        for (int row = 0; row < state.rows(reg_); ++row)
            std::memcpy(state.bytes[reg_][row], memory(row), state.row_nbytes(reg_));
    }

    void store(Tiles& state) const {
        require(state.is_configured());
        for (int row = 0; row < state.rows(reg_); ++row)
            std::memcpy(memory(row), state.bytes[reg_][row], state.row_nbytes(reg_));
    }

    template <class Multiply>
    void multiply(Tiles& state, const Multiply& by) const {
        require(state.is_configured() && reg_ != rm_ && reg_ != last_ && rm_ != last_);
        require(state.rows(reg_) == state.rows(rm_) && state.row_nbytes(reg_) == state.row_nbytes(last_));
        require(state.row_nbytes(rm_) == 4 * state.rows(last_));
        by(state, reg_, rm_, last_);
    }

    greg_t* gregs_;
    const uint8_t* at_;
    int prefix_, opcode_, mode_, reg_, rm_, last_, length_;
    int64_t address_ = 0, stride_ = 0;
};

inline void handle(int, siginfo_t*, void* context) {
    const Instruction instruction(static_cast<ucontext_t*>(context));
    instruction.run(tiles());
    instruction.skip();
    ++count;
}

inline void install() {
    struct sigaction action = {};
    action.sa_sigaction = handle;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGILL, &action, nullptr);
}

}  // namespace traps
