// A training step of the network of model.py on a CPU, float32: forward, backward and update; native.py calls it.
//
// Compiled once for each width of vectors (LANES floats: 16 for AVX-512, 8 for AVX2). Vectors are the compiler's own
// types, so that what stands below is arithmetic. Letters: B curves in a batch, f1 and f2 filters, h hidden units;
// in templates N and G are sizes of a tile.
//
//   lanes are samples: a vector holds one number of LANES curves, a *group*. At most 5 groups are a *chunk*: so many
//   vectors meet the same weight, and what a chunk needs stays in the core's caches.
//
//       batch      | group 0 | group 1 | ... | group 4 |  group 5 | ...              B curves, the last group padded
//                  '----------- chunk 0 --------------'  '--- chunk 1
//       group      curves (3, 201) -> convolve -> (f1, 65) -> convolve -> (f2, 20)   pooled before they are stored
//       chunk      (20 f2, groups) -> hidden layer (h, groups) -> outputs (2, groups)
//
//   A product is made in tiles of so many sums as there are registers: each number that is loaded serves a row or a
//   column of them. For the hidden layer, 4 units of 5 groups in 20 registers:
//
//                      x[i], group  0     1     2     3     4
//       weight[j + 0][i]           sum   sum   sum   sum   sum
//       weight[j + 1][i]           sum   sum   sum   sum   sum     for all i: sum += weight * x
//       weight[j + 2][i]           sum   sum   sum   sum   sum
//       weight[j + 3][i]           sum   sum   sum   sum   sum
//
//   One product has other lanes: the gradient of the hidden layer's weight is a sum over samples, so that its lanes are
//   inputs and samples are turned into columns first (`transpose`). Gradients of all other parameters are summed up
//   lane by lane in `sums`, and over the lanes at the end.

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>

constexpr int W = LANES;
typedef float V __attribute__((vector_size(4 * W), may_alias));
typedef float Unaligned __attribute__((vector_size(4 * W), aligned(4), may_alias));
typedef int32_t I __attribute__((vector_size(4 * W)));
typedef int16_t Shorts __attribute__((vector_size(2 * W)));  // a step between the others: GCC widens by 2 at a time
typedef int8_t Bytes __attribute__((vector_size(W)));

constexpr int CHANNELS = 3, POINTS = 201, TARGETS = 2, KERNEL = 5, POOL = 3;
constexpr int CURVE = CHANNELS * POINTS;
constexpr int CELLS1 = (POINTS - KERNEL + 1) / POOL, CELLS2 = (CELLS1 - KERNEL + 1) / POOL;  // 65 and 20 after pooling
constexpr int USED1 = CELLS2 * POOL + KERNEL - 1;           // of the first cells, those that the second convolution reads
constexpr int PAD = KERNEL - 1, PADDED2 = CELLS2 * POOL + 2 * PAD;  // gradients between zeros
constexpr int NOBODY = POOL;                                // "winner" of a pooling whose result ReLU made 0

// Tiles for 32 registers (AVX-512) or 16 (AVX2).
constexpr bool WIDE = W >= 16;
constexpr int MOST_GROUPS = 5, FILTERS = WIDE ? 8 : 4, UNITS = WIDE ? 4 : 2, INPUTS = WIDE ? 4 : 2;
constexpr int ROWS = 5, COLUMNS = WIDE ? 4 : 2;             // of the gradient of the hidden layer's weight
constexpr int TAP_FILTERS = WIDE ? 4 : 2, PLACES = WIDE ? 4 : 2;
constexpr int STRETCH = 80, STRETCH1 = 16;                  // inputs of the hidden layer, cells of the first: of L1's size

template <int N> using Size = std::integral_constant<int, N>;

// body(Size<n>) for a count n from 1 to MOST that is known at run time.
template <int MOST, class Body> inline void with_size(int n, Body body) {
  if constexpr (MOST > 1)
    if (n < MOST) return with_size<MOST - 1>(n, body);
  body(Size<MOST>{});
}

// Cut `count` into the fewest parts of at most MOST, as equal as can be: body(Size<n>, first).
template <int MOST, class Body> inline void in_tiles(int count, Body body) {
  long parts = (count + MOST - 1) / MOST;
  for (long part = 0; part < parts; ++part) {
    int first = int(count * part / parts), end = int(count * (part + 1) / parts);
    with_size<MOST>(end - first, [&](auto n) { body(n, first); });
  }
}

#define UNROLLED _Pragma("GCC unroll 24")

inline V same(float value) { return value - V{}; }           // in all lanes

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

// to[n] = the sum over the lanes of from[n].
static void sum_lanes(const V* from, float* to, int count) {
  for (int first = 0; first < count; first += W) {
    V block[W];
    int rows = count - first < W ? count - first : W;
    for (int row = 0; row < W; ++row) block[row] = row < rows ? from[first + row] : V{};
    transpose(block);
    V sum = block[0];
    for (int row = 1; row < W; ++row) sum += block[row];
    memcpy(to + first, &sum, sizeof(float) * rows);
  }
}

// packed: the weights (outputs, terms) of one tile of filters after the other, each as (terms, filters of the tile).
static void pack(const float* weight, int outputs, int terms, float* packed) {
  in_tiles<FILTERS>(outputs, [&](auto n, int first) {
    for (int term = 0; term < terms; ++term)
      for (int q = 0; q < n; ++q) *packed++ = weight[long(first + q) * terms + term];
  });
}

// Convolution, pooling and ReLU of one group for N filters: x (channels, length) -> out, and who won each pooling: as
// PyTorch does, the first of the largest, or the last that is not a number. Filters and cells of `out` are `row` and
// `step` apart.
template <int N>
static void convolve(const V* x, int channels, int length, int cells, const float* packed, const float* bias, V* out,
                     long row, long step, Bytes* winner) {
  for (int cell = 0; cell < cells; ++cell) {
    V sum[N][POOL];
    UNROLLED for (int q = 0; q < N; ++q)
      UNROLLED for (int j = 0; j < POOL; ++j) sum[q][j] = same(bias[q]);
    const float* weight = packed;
    for (int c = 0; c < channels; ++c) {
      const V* at = x + c * length + POOL * cell;
      UNROLLED for (int k = 0; k < KERNEL; ++k) {
        V x0 = at[k], x1 = at[k + 1], x2 = at[k + 2];
        UNROLLED for (int q = 0; q < N; ++q) {
          V w = same(*weight++);
          sum[q][0] += x0 * w;
          sum[q][1] += x1 * w;
          sum[q][2] += x2 * w;
        }
      }
    }
    UNROLLED for (int q = 0; q < N; ++q) {
      V best = sum[q][0];
      I who = {};
      UNROLLED for (int j = 1; j < POOL; ++j) {
        V other = sum[q][j];
        who = other > best ? same_int(j) : who;
        who = other != other ? same_int(j) : who;
        best = other > best ? other : best;
        best = other != other ? other : best;
      }
      out[q * row + cell * step] = best <= V{} ? V{} : best;
      winner[q * cells + cell] = __builtin_convertvector(best <= V{} ? same_int(NOBODY) : who, Bytes);
    }
  }
}

// The gradient before pooling from that after it, (filters, cells), of one group; `total` += its sums, for the bias.
static void unpool(const V* d, long row, long step, const Bytes* winner, int winner_row, int filters, int cells,
                   V* before, int length, V* total) {
  for (int o = 0; o < filters; ++o) {
    V sum = {};
    for (int cell = 0; cell < cells; ++cell) {
      V value = d[o * row + cell * step];
      I who = __builtin_convertvector(__builtin_convertvector(winner[o * winner_row + cell], Shorts), I);
      UNROLLED for (int j = 0; j < POOL; ++j) before[o * length + POOL * cell + j] = who == j ? value : V{};
      sum += who == NOBODY ? V{} : value;
    }
    total[o] += sum;
  }
}

// dx[c][m] = the sum over filters o and taps k of weight[o][c][k] d[o][m - k], of one group; d lies between PAD zeros.
static void input_gradients(const V* d, int filters, const float* weight, int channels, V* dx) {
  in_tiles<5>(channels, [&](auto n, int c) {
    constexpr int N = decltype(n)::value;
    for (int m = 0; m < USED1; m += PLACES) {
      V sum[N][PLACES] = {};
      for (int o = 0; o < filters; ++o) {
        const V* at = d + o * PADDED2 + m + PAD;
        const float* w = weight + (long(o) * channels + c) * KERNEL;
        UNROLLED for (int k = 0; k < KERNEL; ++k)
          UNROLLED for (int q = 0; q < N; ++q) {
            V tap = same(w[q * KERNEL + k]);
            UNROLLED for (int place = 0; place < PLACES; ++place) sum[q][place] += at[place - k] * tap;
          }
      }
      for (int q = 0; q < N; ++q)
        for (int place = 0; place < PLACES; ++place) dx[(c + q) * USED1 + m + place] = sum[q][place];
    }
  });
}

struct Network {
  int batch, first, second, hidden, inputs, groups;         // inputs: of the hidden layer
  const float *weight[4], *bias[4];                         // conv1, conv2, fc1, fc2; as PyTorch has them
  float *weight_gradient[4], *bias_gradient[4];
  float factor[CHANNELS], shift[CHANNELS];                  // scaling of the inputs
  V *x, *out1, *out2, *units, *miss;                        // of all groups; miss: output - target
  Bytes *winner1, *winner2;
  V *d_units, *d_out2;                                      // of a chunk
  V *before1, *before2, *d_out1;                            // of a group; before1: of a tile of filters
  V *sums, *total_w[4], *total_b[4];                        // parts of sums: gradients, lane by lane
  long sum_count;
  float *packed1, *packed2;

  // body(Size<G>, first group) for all chunks.
  template <class Body> void in_chunks(Body body) const { in_tiles<MOST_GROUPS>(groups, body); }

  void read_curves(int group, const float* curves) {
    static const float nothing[CURVE] = {};
    const float* curve[W];
    for (int lane = 0; lane < W; ++lane) {
      long sample = long(group) * W + lane;
      curve[lane] = sample < batch ? curves + sample * CURVE : nothing;
    }
    for (int from = 0; from < CURVE; from += W) {
      int at = from + W <= CURVE ? from : CURVE - W;        // the last block reads some points again
      V block[W];
      UNROLLED for (int lane = 0; lane < W; ++lane) block[lane] = *(const Unaligned*)(curve[lane] + at);
      transpose(block);
      for (int row = 0; row < W; ++row) {
        int channel = (at + row) / POINTS;
        x[long(group) * CURVE + at + row] = block[row] * factor[channel] + shift[channel];
      }
    }
  }

  template <int G> void forward_hidden(const V* in, V* out) const {
    for (int j = 0; j < hidden; ++j)
      for (int g = 0; g < G; ++g) out[j * G + g] = same(bias[2][j]);
    for (int from = 0; from < inputs; from += STRETCH) {
      int count = inputs - from < STRETCH ? inputs - from : STRETCH;
      in_tiles<UNITS>(hidden, [&](auto n, int j) {
        constexpr int N = decltype(n)::value;
        V sum[N][G];
        UNROLLED for (int q = 0; q < N; ++q)
          UNROLLED for (int g = 0; g < G; ++g) sum[q][g] = out[(j + q) * G + g];
        const float* w = weight[2] + long(j) * inputs + from;
        const V* at = in + long(from) * G;
        for (int i = 0; i < count; ++i, at += G)
          UNROLLED for (int q = 0; q < N; ++q) {
            V value = same(w[long(q) * inputs + i]);
            UNROLLED for (int g = 0; g < G; ++g) sum[q][g] += at[g] * value;
          }
        UNROLLED for (int q = 0; q < N; ++q)
          UNROLLED for (int g = 0; g < G; ++g) out[(j + q) * G + g] = sum[q][g];
      });
    }
    for (long n = 0; n < long(hidden) * G; ++n) out[n] = out[n] <= V{} ? V{} : out[n];
  }

  // miss = output - target, 0 in lanes without a sample; returns the sum of its squares.
  template <int G> double forward_output(const V* in, const float* targets, int chunk) {
    double total = 0;
    for (int t = 0; t < TARGETS; ++t)
      for (int g = 0; g < G; ++g) {
        V y = same(bias[3][t]);
        for (int j = 0; j < hidden; ++j) y += in[j * G + g] * weight[3][t * hidden + j];
        for (int lane = 0; lane < W; ++lane) {
          long sample = long(chunk + g) * W + lane;
          float error = sample < batch ? y[lane] - targets[sample * TARGETS + t] : 0;
          y[lane] = error;
          total += double(error) * error;
        }
        miss[(chunk + g) * TARGETS + t] = y;
      }
    return total;
  }

  float forward(const float* curves, const float* targets) {
    pack(weight[0], first, CHANNELS * KERNEL, packed1);
    pack(weight[1], second, first * KERNEL, packed2);
    double total = 0;
    in_chunks([&](auto groups_here, int chunk) {
      constexpr int G = decltype(groups_here)::value;
      V *in = out2 + long(chunk) * inputs, *out = units + long(chunk) * hidden;
      for (int g = 0; g < G; ++g) {
        long group = chunk + g;
        V* pooled = out1 + group * first * CELLS1;
        read_curves(int(group), curves);
        in_tiles<FILTERS>(first, [&](auto n, int o) {
          convolve<decltype(n)::value>(x + group * CURVE, CHANNELS, POINTS, CELLS1, packed1 + o * CHANNELS * KERNEL,
                                       bias[0] + o, pooled + o * CELLS1, CELLS1, 1,
                                       winner1 + (group * first + o) * CELLS1);
        });
        in_tiles<FILTERS>(second, [&](auto n, int o) {
          convolve<decltype(n)::value>(pooled, first, CELLS1, CELLS2, packed2 + long(o) * first * KERNEL, bias[1] + o,
                                       in + long(o) * CELLS2 * G + g, CELLS2 * G, G,
                                       winner2 + (group * second + o) * CELLS2);
        });
      }
      forward_hidden<G>(in, out);
      total += forward_output<G>(out, targets, chunk);
    });
    return float(total / (double(batch) * TARGETS));
  }

  // From the outputs' errors, times `scale`, to the gradient of the hidden units.
  template <int G> void backward_output(const V* out, int chunk, float scale) {
    V d[TARGETS][G];
    for (int t = 0; t < TARGETS; ++t)
      for (int g = 0; g < G; ++g) total_b[3][t] += d[t][g] = miss[(chunk + g) * TARGETS + t] * scale;
    for (int j = 0; j < hidden; ++j)
      for (int g = 0; g < G; ++g) {
        V unit = out[j * G + g], value = {};
        for (int t = 0; t < TARGETS; ++t) {
          total_w[3][t * hidden + j] += unit * d[t][g];
          value += d[t][g] * weight[3][t * hidden + j];
        }
        value = unit == V{} ? V{} : value;                  // what is not a number passes, as in PyTorch
        d_units[j * G + g] = value;
        total_b[2][j] += value;
      }
  }

  // Gradient of the hidden layer's weight; lanes are inputs. Sums over samples, which `begin` begins.
  template <int G> void backward_hidden_weight(const V* in, bool begin) {
    constexpr int SAMPLES = G * W;
    V columns[SAMPLES][COLUMNS];
    for (int i = 0; i < inputs; i += COLUMNS * W) {
      for (int column = 0; column < COLUMNS; ++column)
        for (int g = 0; g < G; ++g) {
          V block[W];
          for (int row = 0; row < W; ++row) {
            int input = i + column * W + row;
            block[row] = input < inputs ? in[long(input) * G + g] : V{};
          }
          transpose(block);
          UNROLLED for (int row = 0; row < W; ++row) columns[g * W + row][column] = block[row];
        }
      in_tiles<ROWS>(hidden, [&](auto n, int j) {
        constexpr int N = decltype(n)::value;
        const float* d = (const float*)(d_units + j * G);
        V sum[N][COLUMNS] = {};
        for (int sample = 0; sample < SAMPLES; ++sample)
          UNROLLED for (int q = 0; q < N; ++q) {
            V value = same(d[q * SAMPLES + sample]);
            UNROLLED for (int column = 0; column < COLUMNS; ++column) sum[q][column] += columns[sample][column] * value;
          }
        for (int q = 0; q < N; ++q)
          for (int column = 0; column < COLUMNS; ++column) {
            int at = i + column * W, count = inputs - at < W ? inputs - at : W;
            float* to = weight_gradient[2] + long(j + q) * inputs + at;
            if (count == W) {
              *(Unaligned*)to = begin ? sum[q][column] : *(Unaligned*)to + sum[q][column];
            } else {
              for (int lane = 0; lane < count; ++lane)
                to[lane] = sum[q][column][lane] + (begin ? 0 : to[lane]);
            }
          }
      });
    }
  }

  template <int G> void backward_hidden_input() const {
    for (int i = 0; i < inputs; i += INPUTS) {              // `inputs` is a multiple of CELLS2
      V sum[INPUTS][G] = {};
      const float* w = weight[2] + i;
      for (int j = 0; j < hidden; ++j, w += inputs)
        UNROLLED for (int q = 0; q < INPUTS; ++q) {
          V value = same(w[q]);
          UNROLLED for (int g = 0; g < G; ++g) sum[q][g] += d_units[j * G + g] * value;
        }
      for (int q = 0; q < INPUTS; ++q)
        for (int g = 0; g < G; ++g) d_out2[long(i + q) * G + g] = sum[q][g];
    }
  }

  // Gradients of a convolution's weight and bias, of one group: total_w[o][c][k] += the sum over places l of
  // in[c][l + k] before[o][l]. `d`, after the pooling, has filters and cells `row` and `step` apart. The gradient before
  // the pooling is made for a tile of filters at a time, just before it is used; that of the second layer is kept.
  template <int LAYER>
  void backward_convolution(const V* in, int channels, const V* d, long row, long step, const Bytes* winner,
                            int filters, V* before) {
    constexpr int CELLS = LAYER ? CELLS2 : USED1, WINNERS = LAYER ? CELLS2 : CELLS1, LENGTH = LAYER ? CELLS1 : POINTS;
    constexpr int PART = LAYER ? CELLS2 : STRETCH1, BEFORE = LAYER ? PADDED2 : STRETCH1 * POOL;
    in_tiles<TAP_FILTERS>(filters, [&](auto n, int o) {
      constexpr int N = decltype(n)::value;
      V* here = LAYER ? before + o * BEFORE : before;
      for (int from = 0; from < CELLS; from += PART) {
        int cells = CELLS - from < PART ? CELLS - from : PART;
        unpool(d + o * row + from * step, row, step, winner + o * WINNERS + from, WINNERS, N, cells, here, BEFORE,
               total_b[LAYER] + o);
        for (int c = 0; c < channels; ++c) {
          V sum[N][KERNEL] = {};
          for (int l = 0; l < cells * POOL; ++l) {
            V at[KERNEL];
            UNROLLED for (int k = 0; k < KERNEL; ++k) at[k] = in[c * LENGTH + POOL * from + l + k];
            UNROLLED for (int q = 0; q < N; ++q) {
              V value = here[q * BEFORE + l];
              UNROLLED for (int k = 0; k < KERNEL; ++k) sum[q][k] += at[k] * value;
            }
          }
          for (int q = 0; q < N; ++q)
            for (int k = 0; k < KERNEL; ++k) total_w[LAYER][((o + q) * channels + c) * KERNEL + k] += sum[q][k];
        }
      }
    });
  }

  void backward(float share) {
    memset(sums, 0, sizeof(V) * sum_count);
    float scale = share * 2 / (float(batch) * TARGETS);
    in_chunks([&](auto groups_here, int chunk) {
      constexpr int G = decltype(groups_here)::value;
      backward_output<G>(units + long(chunk) * hidden, chunk, scale);
      backward_hidden_weight<G>(out2 + long(chunk) * inputs, chunk == 0);
      backward_hidden_input<G>();
      for (int g = 0; g < G; ++g) {
        long group = chunk + g;
        backward_convolution<1>(out1 + group * first * CELLS1, first, d_out2 + g, CELLS2 * G, G,
                                winner2 + group * second * CELLS2, second, before2 + PAD);
        input_gradients(before2, second, weight[1], first, d_out1);
        backward_convolution<0>(x + group * CURVE, CHANNELS, d_out1, USED1, 1, winner1 + group * first * CELLS1, first,
                                before1);
      }
    });
    for (int layer = 0; layer < 4; ++layer) {
      if (layer != 2) sum_lanes(total_w[layer], weight_gradient[layer], weights(layer));
      sum_lanes(total_b[layer], bias_gradient[layer], outputs(layer));
    }
  }

  int outputs(int layer) const { return layer == 0 ? first : layer == 1 ? second : layer == 2 ? hidden : TARGETS; }
  int weights(int layer) const {
    int each = layer == 0 ? CHANNELS * KERNEL : layer == 1 ? first * KERNEL : layer == 2 ? inputs : hidden;
    return outputs(layer) * each;
  }

  // All memory, in one piece at `memory` of zeros; returns how many bytes it is. Without memory, only counts.
  size_t place(char* memory) {
    size_t used = 0;
    auto take = [&](auto*& pointer, long count) {
      pointer = memory ? reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(memory + used) : nullptr;
      used += (sizeof(*pointer) * size_t(count) + 63) / 64 * 64;
    };
    long n = groups;
    take(x, n * CURVE);
    take(out1, n * first * CELLS1);
    take(out2, n * inputs);
    take(units, n * hidden);
    take(miss, n * TARGETS);
    take(winner1, n * first * CELLS1);
    take(winner2, n * inputs);
    take(d_units, long(MOST_GROUPS) * hidden);
    take(d_out2, long(MOST_GROUPS) * inputs);
    take(before1, long(TAP_FILTERS) * STRETCH1 * POOL);
    take(before2, long(second) * PADDED2);
    take(d_out1, long(first) * USED1);
    take(packed1, weights(0));
    take(packed2, weights(1));
    take(sums, sum_count = weights(0) + weights(1) + weights(3) + first + second + hidden + TARGETS);
    V* next = sums;
    for (int layer = 0; layer < 4; ++layer) {
      total_w[layer] = next;
      if (layer != 2) next += weights(layer);
      total_b[layer] = next;
      next += outputs(layer);
    }
    return used;
  }
};

static void adam_tensor(long count, float* __restrict weight, const float* __restrict gradient, float* __restrict mean,
                        float* __restrict square, float step, double lr, double beta1, double beta2, double epsilon,
                        double decay, bool decoupled) {
  float rate = float(lr / (1 - pow(beta1, step))), root = float(1 / sqrt(1 - pow(beta2, step)));
  float keep1 = float(beta1), new1 = float(1 - beta1), keep2 = float(beta2), new2 = float(1 - beta2);
  float shrink = decoupled ? float(1 - lr * decay) : 1, pull = decoupled ? 0 : float(decay), tiny = float(epsilon);
  for (long n = 0; n < count; ++n) {
    float w = weight[n] * shrink, g = gradient[n] + pull * w;
    float m = mean[n] = keep1 * mean[n] + new1 * g;
    float s = square[n] = keep2 * square[n] + new2 * g * g;
    weight[n] = w - rate * m / (sqrtf(s) * root + tiny);
  }
}

static void sgd_tensor(long count, float* __restrict weight, const float* __restrict gradient,
                       float* __restrict momentum, double lr, double keep, double decay) {
  float rate = float(lr), kept = float(keep), pull = float(decay);
  for (long n = 0; n < count; ++n) {
    float g = gradient[n] + pull * weight[n];
    float m = momentum[n] = kept * momentum[n] + g;
    weight[n] -= rate * (g + kept * m);
  }
}

extern "C" {

int usable() {
#if LANES == 16
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#else
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
}

// parameters and gradients: weight and bias of conv1, conv2, fc1, fc2. Returns null where memory is short.
Network* create(int batch, int first, int second, int hidden, float** parameters, float** gradients,
                const float* factor, const float* shift) {
  Network* network = (Network*)calloc(1, sizeof(Network));
  if (!network) return nullptr;
  network->batch = batch, network->first = first, network->second = second, network->hidden = hidden;
  network->inputs = second * CELLS2, network->groups = (batch + W - 1) / W;
  for (int layer = 0; layer < 4; ++layer) {
    network->weight[layer] = parameters[2 * layer], network->bias[layer] = parameters[2 * layer + 1];
    network->weight_gradient[layer] = gradients[2 * layer], network->bias_gradient[layer] = gradients[2 * layer + 1];
  }
  memcpy(network->factor, factor, sizeof network->factor);
  memcpy(network->shift, shift, sizeof network->shift);
  size_t size = network->place(nullptr);
  char* memory = (char*)aligned_alloc(64, size);
  if (!memory) return free(network), nullptr;
  memset(memory, 0, size);
  network->place(memory);
  return network;
}

void destroy(Network* network) {
  free(network->x);
  free(network);
}

// curves (B, 3, 201), targets (B, 2) -> loss: the mean of the squared errors.
void forward(Network* network, const float* curves, const float* targets, float* loss) {
  *loss = network->forward(curves, targets);
}

// The gradients of the loss of the last forward, times `share`.
void backward(Network* network, float share) { network->backward(share); }

// Multiply-adds in registers, as many as a core can make; returns how many operations. `sums`, one vector, is read by
// nobody, and keeps the compiler from leaving them out.
double multiply_add(long turns, float* sums) {
  constexpr int COUNT = WIDE ? 24 : 12;
  V sum[COUNT], factor = same(0.5f), term = same(1.0f);
  UNROLLED for (int n = 0; n < COUNT; ++n) sum[n] = same(float(n + 3));  // unlike ones: equal ones are computed once
  for (long turn = 0; turn < turns; ++turn)
    UNROLLED for (int n = 0; n < COUNT; ++n) sum[n] = sum[n] * factor + term;
  V total = {};
  UNROLLED for (int n = 0; n < COUNT; ++n) total += sum[n];
  *(Unaligned*)sums = total;
  return 2.0 * W * COUNT * double(turns);
}

// One update of some tensors by Adam, or by AdamW (`decoupled`): all of a number in one pass.
void adam(int tensors, const long* counts, float** weights, float** gradients, float** means, float** squares,
          float** steps, double lr, double beta1, double beta2, double epsilon, double decay, int decoupled) {
  for (int tensor = 0; tensor < tensors; ++tensor)
    adam_tensor(counts[tensor], weights[tensor], gradients[tensor], means[tensor], squares[tensor],
                *steps[tensor] += 1, lr, beta1, beta2, epsilon, decay, decoupled);
}

// The same by stochastic gradient descent with Nesterov's momentum.
void sgd(int tensors, const long* counts, float** weights, float** gradients, float** momenta, double lr, double keep,
         double decay) {
  for (int tensor = 0; tensor < tensors; ++tensor)
    sgd_tensor(counts[tensor], weights[tensor], gradients[tensor], momenta[tensor], lr, keep, decay);
}
}
