// Updates of tensors, written plainly: the compiler makes vectors of them. And how much a core can multiply and add.

#include "lanes.h"

#include <cmath>

extern "C" {

// One update of some tensors by Adam, or by AdamW (`decoupled`): all of a number in one pass.
void adam(int tensors, const long* counts, float** weights, float** gradients, float** means, float** squares,
          float** steps, double lr, double beta1, double beta2, double epsilon, double decay, int decoupled) {
  float keep1 = float(beta1), new1 = float(1 - beta1), keep2 = float(beta2), new2 = float(1 - beta2);
  float shrink = decoupled ? float(1 - lr * decay) : 1, pull = decoupled ? 0 : float(decay), tiny = float(epsilon);
  for (int tensor = 0; tensor < tensors; ++tensor) {
    float *__restrict weight = weights[tensor], *__restrict mean = means[tensor], *__restrict square = squares[tensor];
    const float* __restrict gradient = gradients[tensor];
    float step = *steps[tensor] += 1;
    float rate = float(lr / (1 - pow(beta1, step))), root = float(1 / sqrt(1 - pow(beta2, step)));
    for (long n = 0; n < counts[tensor]; ++n) {
      float w = weight[n] * shrink, g = gradient[n] + pull * w;
      float m = mean[n] = keep1 * mean[n] + new1 * g;
      float s = square[n] = keep2 * square[n] + new2 * g * g;
      weight[n] = w - rate * m / (sqrtf(s) * root + tiny);
    }
  }
}

// The same by stochastic gradient descent with Nesterov's momentum.
void sgd(int tensors, const long* counts, float** weights, float** gradients, float** momenta, double lr, double keep,
         double decay) {
  float rate = float(lr), kept = float(keep), pull = float(decay);
  for (int tensor = 0; tensor < tensors; ++tensor) {
    float *__restrict weight = weights[tensor], *__restrict momentum = momenta[tensor];
    const float* __restrict gradient = gradients[tensor];
    for (long n = 0; n < counts[tensor]; ++n) {
      float g = gradient[n] + pull * weight[n];
      float m = momentum[n] = kept * momentum[n] + g;
      weight[n] -= rate * (g + kept * m);
    }
  }
}

// Multiply-adds in registers, as many as a core can make; returns how many operations. `sums`, one vector, is read by
// nobody, and keeps the compiler from leaving them out.
double multiply_add(long turns, float* sums) {
  constexpr int COUNT = WIDE ? 24 : 12;
  V sum[COUNT], factor = same(0.5f), term = same(1.0f);
  UNROLLED for (int n = 0; n < COUNT; ++n) sum[n] = same(float(n + 3));  // unlike ones: equal ones are computed once
  for (long turn = 0; turn < turns; ++turn)
    UNROLLED for (int n = 0; n < COUNT; ++n) sum[n] = sum[n] * factor + term;
  for (int n = 1; n < COUNT; ++n) sum[0] += sum[n];
  *(Unaligned*)sums = sum[0];
  return 2.0 * W * COUNT * double(turns);
}
}
