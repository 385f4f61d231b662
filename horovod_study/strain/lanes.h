// Vectors of LANES floats, the compiler's own, and tiles of so many of them as there are registers.

#pragma once

#include <cstdint>
#include <type_traits>

constexpr int W = LANES;
typedef float V __attribute__((vector_size(4 * W), may_alias));
typedef float Unaligned __attribute__((vector_size(4 * W), aligned(4), may_alias));
typedef int32_t I __attribute__((vector_size(4 * W)));
typedef int16_t Shorts __attribute__((vector_size(2 * W)));  // a step between the others: GCC widens by 2 at a time
typedef int8_t Bytes __attribute__((vector_size(W)));
constexpr bool WIDE = W >= 16;                              // 32 registers (AVX-512), or 16 (AVX2)

template <int N> using Size = std::integral_constant<int, N>;

// body(Size<n>) for a count n from 1 to MOST that is known at run time.
template <int MOST, class Body> inline void with_size(int n, Body body) {
  if constexpr (MOST > 1)
    if (n < MOST) return with_size<MOST - 1>(n, body);
  body(Size<MOST>{});
}

// Cut `count` into the fewest parts of at most MOST, as equal as can be: body(Size<n>, first).
template <int MOST, class Body> inline void in_tiles(int count, Body body) {
  int parts = (count + MOST - 1) / MOST;
  for (int part = 0, first = 0; part < parts; ++part) {
    int size = count / parts + (part < count % parts);
    with_size<MOST>(size, [&](auto n) { body(n, first); });
    first += size;
  }
}

#define UNROLLED _Pragma("GCC unroll 24")

inline int least(int a, int b) { return a < b ? a : b; }
inline V same(float value) { return value - V{}; }          // in all lanes
inline I same_int(int value) { return I{} + value; }

// block[row][lane] becomes block[lane][row]: in each turn, pairs of rows `STRIDE` apart exchange halves.
template <int STRIDE = 1> inline void transpose(V* block) {
  I low, high;
  for (int lane = 0; lane < W; ++lane) {
    low[lane] = lane & STRIDE ? lane - STRIDE + W : lane;
    high[lane] = lane & STRIDE ? lane + W : lane + STRIDE;
  }
  UNROLLED for (int row = 0; row < W; ++row)
    if (!(row & STRIDE)) {
      V a = block[row], b = block[row + STRIDE];
      block[row] = __builtin_shuffle(a, b, low);
      block[row + STRIDE] = __builtin_shuffle(a, b, high);
    }
  if constexpr (2 * STRIDE < W) transpose<2 * STRIDE>(block);
}

template <int HALF = W / 2> inline float sum_lanes(V value) {
  I other;
  for (int lane = 0; lane < W; ++lane) other[lane] = lane ^ HALF;
  value += __builtin_shuffle(value, other);
  if constexpr (HALF > 1) return sum_lanes<HALF / 2>(value);
  return value[0];
}
