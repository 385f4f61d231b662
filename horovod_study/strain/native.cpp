// A training step of the network of model.py on a CPU, float32: forward, backward and update; native.py calls it.
//
// Compiled once for each width of vectors (lanes.h; 16 floats for AVX-512, 8 for AVX2). Letters: f1 and f2 filters,
// h hidden units; in templates N, P and G are sizes of a tile.
//
//   lanes are samples: a vector holds one number of LANES curves, a *group*. At most 5 groups are a *chunk*: so many
//   vectors meet the same weight, and what a chunk needs stays in the core's caches.
//
//       group      x (3, 201) -> convolve -> out1 (f1, 65) -> convolve -> out2 (f2, 20)   pooled before they are stored
//       chunk      out2 (20 f2, groups) -> dense -> units (h, groups) -> outputs (2, groups)
//
//   A product is made in tiles of so many sums as there are registers: each number that is loaded serves a row or a
//   column of them. For the hidden layer, 4 units of 5 groups in 20 registers:
//
//                      in[i], group  0     1     2     3     4
//       weight[j + 0][i]           sum   sum   sum   sum   sum
//       weight[j + 1][i]           sum   sum   sum   sum   sum     for all i: sum += weight * in
//       weight[j + 2][i]           sum   sum   sum   sum   sum
//       weight[j + 3][i]           sum   sum   sum   sum   sum
//
//   One product has other lanes: the gradient of the hidden layer's weight is a sum over samples, so that its lanes are
//   inputs and samples are turned into columns first (`transpose`). Gradients of all other parameters are summed up
//   lane by lane in `total_w` and `total_b`, and over the lanes at the end.

#include "lanes.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

constexpr int CHANNELS = 3, POINTS = 201, CURVE = CHANNELS * POINTS, TARGETS = 2, KERNEL = 5, POOL = 3;
constexpr int PAD = KERNEL - 1, CELLS1 = (POINTS - PAD) / POOL, CELLS2 = (CELLS1 - PAD) / POOL;  // 65, 20: pooled
constexpr int USED1 = CELLS2 * POOL + PAD;                  // of the first cells, those the second convolution reads
constexpr int PADDED2 = USED1 + PAD;                        // gradients before the second pooling, between zeros
constexpr int NOBODY = POOL;                                // "winner" of a pooling whose result ReLU made 0

// Tiles for the registers; stretches of inputs and of cells for the first-level cache.
constexpr int FILTERS = WIDE ? 8 : 4, MAPS = WIDE ? 5 : 2, PLACES = 4, UNITS = WIDE ? 4 : 2, MOST_GROUPS = 5;
constexpr int ROWS = 5, COLUMNS = WIDE ? 4 : 2, TAPPED = WIDE ? 4 : 2, STRETCH = 80, CELLS = 20;

// packed: of one tile of outputs after the other, weights as (channels, taps, outputs of the tile), for `convolve`.
template <int MOST>
static void pack(const float* weight, int outputs, int by_output, int channels, int by_channel, bool backwards,
                 float* packed) {
  in_tiles<MOST>(outputs, [&](auto n, int o) {
    for (int c = 0; c < channels; ++c)
      for (int k = 0; k < KERNEL; ++k)
        for (int q = 0; q < n; ++q)
          *packed++ = weight[(o + q) * by_output + c * by_channel + (backwards ? PAD - k : k)];
  });
}

// A convolution of one group for all outputs, in (channels, length) -> out (outputs, cells). POOLED: with bias, pooling
// and ReLU, and who won each pooling: as PyTorch does, the first of the largest, or the last that is not a number. Else
// cells are places, PLACES of them at a time; meanwhile `each` lines per output and time are fetched from `ahead` on.
// Outputs and cells of `out` are `row` and `step` apart.
template <bool POOLED>
static void convolve(const V* in, int channels, int length, int cells, const float* packed, const float* bias,
                     int outputs, V* out, long row, long step, Bytes* winner, const V* ahead = nullptr, int each = 0) {
  constexpr int P = POOLED ? POOL : PLACES, AT_ONCE = POOLED ? 1 : PLACES;
  in_tiles<POOLED ? FILTERS : MAPS>(outputs, [&](auto n, int o) {
    constexpr int N = decltype(n)::value;
    const long by_output = row, by_cell = AT_ONCE * step;   // copies: what is stored could be any of the others
    const float* start = bias + o;
    V* to = out + o * row;
    Bytes* who_to = winner + o * cells;
    for (int cell = 0; cell < cells; cell += AT_ONCE, to += by_cell) {
      V sum[N][P];
      UNROLLED for (int q = 0; q < N; ++q)
        UNROLLED for (int p = 0; p < P; ++p) sum[q][p] = POOLED ? same(start[q]) : V{};
      const float* weight = packed + o * channels * KERNEL;
      const V* at = in + (POOLED ? POOL : 1) * cell;
      for (int c = 0; c < channels; ++c, at += length)
        UNROLLED for (int k = 0; k < KERNEL; ++k) {
          V here[P];
          UNROLLED for (int p = 0; p < P; ++p) here[p] = at[k + p];
          UNROLLED for (int q = 0; q < N; ++q) {
            V tap = same(*weight++);
            UNROLLED for (int p = 0; p < P; ++p) sum[q][p] += here[p] * tap;
          }
        }
      if constexpr (POOLED) {
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
          to[q * by_output] = best <= V{} ? V{} : best;
          who_to[q * cells + cell] = __builtin_convertvector(best <= V{} ? same_int(NOBODY) : who, Bytes);
        }
      } else {
        for (int line = 0; line < N * each; ++line) __builtin_prefetch(ahead++, 0, 2);
        UNROLLED for (int q = 0; q < N; ++q)
          UNROLLED for (int p = 0; p < P; ++p) to[q * by_output + p] = sum[q][p];
      }
    }
  });
}

// out[o][g] = start[o] + the sum over terms i of weight[o][i] in[i][g]; weight's strides are given. No start: zeros.
template <int G>
static void dense(const V* in, int terms, const float* weight, long by_output, long by_term, const float* start,
                  int outputs, V* out) {
  for (int from = 0; from < terms; from += STRETCH)
    in_tiles<UNITS>(outputs, [&](auto n, int o) {
      constexpr int N = decltype(n)::value;
      V sum[N][G];
      UNROLLED for (int q = 0; q < N; ++q)
        UNROLLED for (int g = 0; g < G; ++g)
          sum[q][g] = from ? out[(o + q) * G + g] : start ? same(start[o + q]) : V{};
      const float* w = weight + long(o) * by_output + long(from) * by_term;
      const V* at = in + long(from) * G;
      for (int i = 0; i < least(terms - from, STRETCH); ++i, at += G, w += by_term) {
        __builtin_prefetch(w + (N + i % N) * by_output);    // of the next tile
        UNROLLED for (int q = 0; q < N; ++q) {
          V value = same(w[q * by_output]);
          UNROLLED for (int g = 0; g < G; ++g) sum[q][g] += at[g] * value;
        }
      }
      UNROLLED for (int q = 0; q < N; ++q)
        UNROLLED for (int g = 0; g < G; ++g) out[(o + q) * G + g] = sum[q][g];
    });
}

struct Network {
  int batch, first, second, hidden, inputs, groups;         // inputs: of the hidden layer
  const float *weight[4], *bias[4];                         // conv1, conv2, fc1, fc2; as PyTorch has them
  float *weight_gradient[4], *bias_gradient[4];
  float factor[CHANNELS], shift[CHANNELS];                  // scaling of the inputs
  V *maps, *out2, *units, *miss;                            // of all groups; maps: x and out1; miss: output - target
  Bytes *winner1, *winner2;
  V *d_units, *d_out2, *d_out1;                             // gradients, of a chunk, and of a group
  V *before1, *before2;                                     // those before pooling, of a tile and of a group
  V *total_w[4], *total_b[4];                               // those of parameters, lane by lane
  float *packed1, *packed2, *packed_back;
  char* memory;
  size_t used;

  V* x(long group) const { return maps + group * (CURVE + first * CELLS1); }
  V* out1(long group) const { return x(group) + CURVE; }

  // body(Size<G>, first group) for all chunks.
  template <class Body> void in_chunks(Body body) const { in_tiles<MOST_GROUPS>(groups, body); }

  void read_curves(long group, const float* curves) {
    static const float nothing[CURVE] = {};
    for (int c = 0; c < CHANNELS; ++c)
      for (int from = 0; from < POINTS; from += W) {
        int at = c * POINTS + least(from, POINTS - W);      // the last block reads some points again
        V block[W], *to = x(group) + at;
        UNROLLED for (int lane = 0; lane < W; ++lane) {
          long sample = group * W + lane;
          block[lane] = *(const Unaligned*)((sample < batch ? curves + sample * CURVE : nothing) + at);
        }
        transpose(block);
        UNROLLED for (int row = 0; row < W; ++row) to[row] = block[row] * factor[c] + shift[c];
      }
  }

  // miss = output - target, 0 in lanes without a sample; returns the sum of its squares.
  template <int G> double forward_output(const V* in, const float* targets, long chunk) {
    double total = 0;
    V* y = miss + chunk * TARGETS;
    dense<G>(in, hidden, weight[3], hidden, 1, bias[3], TARGETS, y);
    for (int n = 0; n < TARGETS * G; ++n)
      for (int lane = 0; lane < W; ++lane) {
        long sample = (chunk + n % G) * W + lane;
        y[n][lane] = sample < batch ? y[n][lane] - targets[sample * TARGETS + n / G] : 0;
        total += double(y[n][lane]) * y[n][lane];
      }
    return total;
  }

  float forward(const float* curves, const float* targets) {
    pack<FILTERS>(weight[0], first, CHANNELS * KERNEL, CHANNELS, KERNEL, false, packed1);
    pack<FILTERS>(weight[1], second, first * KERNEL, first, KERNEL, false, packed2);
    pack<MAPS>(weight[1], first, KERNEL, second, first * KERNEL, true, packed_back);
    double total = 0;
    in_chunks([&](auto groups_here, long chunk) {
      constexpr int G = decltype(groups_here)::value;
      V *in = out2 + chunk * inputs, *out = units + chunk * hidden;
      for (int g = 0; g < G; ++g) {
        long group = chunk + g;
        read_curves(group, curves);
        convolve<true>(x(group), CHANNELS, POINTS, CELLS1, packed1, bias[0], first, out1(group), CELLS1, 1,
                       winner1 + group * first * CELLS1);
        convolve<true>(out1(group), first, CELLS1, CELLS2, packed2, bias[1], second, in + g, CELLS2 * G, G,
                       winner2 + group * inputs);
      }
      dense<G>(in, inputs, weight[2], inputs, 1, bias[2], hidden, out);
      for (int n = 0; n < hidden * G; ++n) out[n] = out[n] <= V{} ? V{} : out[n];
      total += forward_output<G>(out, targets, chunk);
    });
    return float(total / (double(batch) * TARGETS));
  }

  // From the outputs' errors, times `scale`, to the gradient of the hidden units.
  template <int G> void backward_output(const V* out, long chunk, float scale) {
    V d[TARGETS][G];
    for (int t = 0; t < TARGETS; ++t)
      for (int g = 0; g < G; ++g) total_b[3][t] += d[t][g] = miss[chunk * TARGETS + t * G + g] * scale;
    for (int j = 0; j < hidden; ++j)
      for (int g = 0; g < G; ++g) {
        V unit = out[j * G + g], value = {};
        for (int t = 0; t < TARGETS; ++t) {
          total_w[3][t * hidden + j] += unit * d[t][g];
          value += d[t][g] * weight[3][t * hidden + j];
        }
        total_b[2][j] += d_units[j * G + g] = unit == V{} ? V{} : value;  // NaN passes, as in PyTorch
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
          for (int row = 0, input = i + column * W; row < W; ++row, ++input)
            block[row] = input < inputs ? in[input * G + g] : V{};
          transpose(block);
          UNROLLED for (int row = 0; row < W; ++row) columns[g * W + row][column] = block[row];
        }
      in_tiles<ROWS>(hidden, [&](auto n, int j) {
        constexpr int N = decltype(n)::value;
        const float* d = (const float*)(d_units + j * G);
        float* to = weight_gradient[2] + long(j) * inputs + i;
        V sum[N][COLUMNS] = {};
        UNROLLED for (int q = 0; q < N; ++q)
          UNROLLED for (int column = 0; column < COLUMNS; ++column) __builtin_prefetch(to + q * inputs + column * W, 1);
        for (int sample = 0; sample < SAMPLES; ++sample)
          UNROLLED for (int q = 0; q < N; ++q) {
            V value = same(d[q * SAMPLES + sample]);
            UNROLLED for (int column = 0; column < COLUMNS; ++column) sum[q][column] += columns[sample][column] * value;
          }
        for (int q = 0; q < N; ++q, to += inputs)
          for (int column = 0; column < COLUMNS; ++column) {
            V value = sum[q][column];
            Unaligned* all = (Unaligned*)(to + column * W);
            int from = column * W, end = least(inputs - i, from + W);
            if (end == from + W) *all = begin ? value : *all + value;
            else for (int at = from; at < end; ++at) to[at] = value[at - from] + (begin ? 0 : to[at]);
          }
      });
    }
  }

  // Gradients of a convolution's weight and bias, of one group: total_w[o][c][k] += the sum over places l of
  // in[c][l + k] before[o][l]. `d`, after the pooling, has filters and cells `row` and `step` apart. What is `before`
  // the pooling is made of it for a tile of filters, just before it is used; that of the second layer is kept.
  template <int LAYER>
  void backward_convolution(const V* in, int channels, const V* d, int row, int step, const Bytes* winner,
                            int filters) {
    constexpr int ALL = LAYER ? CELLS2 : USED1, WINNERS = LAYER ? CELLS2 : CELLS1, LENGTH = LAYER ? CELLS1 : POINTS;
    constexpr int LINE = LAYER ? PADDED2 : CELLS * POOL;
    in_tiles<TAPPED>(filters, [&, row, step](auto n, int o) {
      constexpr int N = decltype(n)::value;
      V* before = LAYER ? before2 + o * LINE + PAD : before1;
      for (int from = 0; from < ALL; from += CELLS) {
        int cells = least(ALL - from, CELLS);
        for (int q = 0; q < N; ++q) {
          V total = {}, *to = before + q * LINE;
          const V* after = d + (o + q) * row + from * step;
          const Bytes* won = winner + (o + q) * WINNERS + from;
          for (int cell = 0; cell < cells; ++cell, to += POOL) {
            V value = after[cell * step];
            I who = __builtin_convertvector(__builtin_convertvector(won[cell], Shorts), I);
            UNROLLED for (int j = 0; j < POOL; ++j) to[j] = who == j ? value : V{};
            total += who == NOBODY ? V{} : value;
          }
          total_b[LAYER][o + q] += total;
        }
        for (int c = 0; c < channels; ++c) {
          V sum[N][KERNEL] = {};
          for (int l = 0; l < cells * POOL; l += POOL) {
            V here[POOL + PAD];
            UNROLLED for (int k = 0; k < POOL + PAD; ++k) here[k] = in[c * LENGTH + from * POOL + l + k];
            UNROLLED for (int j = 0; j < POOL; ++j)
              UNROLLED for (int q = 0; q < N; ++q) {
                V value = before[q * LINE + l + j];
                UNROLLED for (int k = 0; k < KERNEL; ++k) sum[q][k] += here[j + k] * value;
              }
          }
          V* to = total_w[LAYER] + (o * channels + c) * KERNEL;
          UNROLLED for (int q = 0; q < N; ++q, to += channels * KERNEL)
            UNROLLED for (int k = 0; k < KERNEL; ++k) to[k] += sum[q][k];
        }
      }
    });
  }

  void backward(float share) {
    memset(total_w[0], 0, memory + used - (char*)total_w[0]);
    const int lines = (CURVE + first * CELLS1) / (first * USED1 / PLACES) + 1;
    in_chunks([&](auto groups_here, long chunk) {
      constexpr int G = decltype(groups_here)::value;
      backward_output<G>(units + chunk * hidden, chunk, share * 2 / (float(batch) * TARGETS));
      backward_hidden_weight<G>(out2 + chunk * inputs, chunk == 0);
      dense<G>(d_units, hidden, weight[2], 1, inputs, nullptr, inputs, d_out2);
      for (int g = 0; g < G; ++g) {
        long group = chunk + g;
        backward_convolution<1>(out1(group), first, d_out2 + g, CELLS2 * G, G, winner2 + group * inputs, second);
        convolve<false>(before2, second, PADDED2, USED1, packed_back, nullptr, first, d_out1, USED1, 1, nullptr,
                        x(group + 1), lines);
        backward_convolution<0>(x(group), CHANNELS, d_out1, USED1, 1, winner1 + group * first * CELLS1, first);
      }
    });
    for (int layer = 0; layer < 4; ++layer) {
      for (int n = 0; n < weights(layer) && layer != 2; ++n) weight_gradient[layer][n] = sum_lanes(total_w[layer][n]);
      for (int n = 0; n < outputs(layer); ++n) bias_gradient[layer][n] = sum_lanes(total_b[layer][n]);
    }
  }

  int outputs(int layer) const { return layer == 0 ? first : layer == 1 ? second : layer == 2 ? hidden : TARGETS; }
  int weights(int layer) const {
    int each[] = {CHANNELS * KERNEL, first * KERNEL, inputs, hidden};
    return outputs(layer) * each[layer];
  }

  template <class T> void take(T*& pointer, long count) {
    pointer = (T*)(memory + used);
    used += (sizeof(T) * size_t(count) + 63) / 64 * 64;
  }

  // Lay all arrays out in `memory`; `used` is then how many bytes they have.
  void place() {
    used = 0;
    take(maps, x(groups) - x(0)), take(out2, long(groups) * inputs), take(units, long(groups) * hidden);
    take(miss, long(groups) * TARGETS);
    take(winner1, long(groups) * first * CELLS1), take(winner2, long(groups) * inputs);
    take(d_units, MOST_GROUPS * hidden), take(d_out2, MOST_GROUPS * inputs), take(d_out1, first * USED1);
    take(before1, TAPPED * CELLS * POOL), take(before2, second * PADDED2);
    take(packed1, weights(0)), take(packed2, weights(1)), take(packed_back, weights(1));
    for (int layer = 0; layer < 4; ++layer)                 // at the end: `backward` begins with zeros there
      take(total_w[layer], layer == 2 ? 0 : weights(layer)), take(total_b[layer], outputs(layer));
  }
};

extern "C" {

int usable() {
  if (!WIDE) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

// parameters and gradients: weight and bias of conv1, conv2, fc1, fc2. Returns null where memory is short.
Network* create(int batch, int first, int second, int hidden, float** parameters, float** gradients,
                const float* factor, const float* shift) {
  Network network = {};
  network.batch = batch, network.first = first, network.second = second, network.hidden = hidden;
  network.inputs = second * CELLS2, network.groups = (batch + W - 1) / W;
  for (int layer = 0; layer < 4; ++layer) {
    network.weight[layer] = parameters[2 * layer], network.bias[layer] = parameters[2 * layer + 1];
    network.weight_gradient[layer] = gradients[2 * layer], network.bias_gradient[layer] = gradients[2 * layer + 1];
  }
  memcpy(network.factor, factor, sizeof network.factor);
  memcpy(network.shift, shift, sizeof network.shift);
  network.place();
  constexpr size_t PAGE = 2 << 20, HEAD = (sizeof network + 63) / 64 * 64;  // large pages, where the system has them
  size_t size = (HEAD + network.used + PAGE - 1) / PAGE * PAGE;
  char* memory = (char*)aligned_alloc(PAGE, size);
  if (!memory) return nullptr;
  madvise(memory, size, MADV_HUGEPAGE);
  memset(memory, 0, size);
  network.memory = memory + HEAD;
  network.place();
  return (Network*)memcpy(memory, &network, sizeof network);
}

void destroy(Network* network) { free(network); }

// curves (B, 3, 201), targets (B, 2) -> loss: the mean of the squared errors.
void forward(Network* network, const float* curves, const float* targets, float* loss) {
  *loss = network->forward(curves, targets);
}

// The gradients of the loss of the last forward, times `share`.
void backward(Network* network, float share) { network->backward(share); }
}
