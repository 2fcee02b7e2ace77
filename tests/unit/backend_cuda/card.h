/* card.h - a CUDA driver whose card is this process: device memory is host memory, and a launch
 * does in plain C what the kernel of that name does, addition for addition in the order of dot.cuh,
 * attn.cuh, mul.cuh, step.cu and mega.cu. With it the engine's host side computes real numbers
 * where there is no GPU, and what the order of sums promises can be checked to the bit.
 *
 * What is not the card's: the hardware's approximate reciprocal root, exponential, tanh, sine and
 * cosine are the host library's here, a few units in the last place away. Products without a norm,
 * sums of values under equal scores, and the choice of the best row use none of them. */
#ifndef HT_TEST_CARD_H
#define HT_TEST_CARD_H
#include "backend/cuda/cuda.h"

enum { CARD_CLOCK = 1980 }; /* ticks that the persistent kernel reports a stage and token */
typedef struct {
    int sms;                /* of the card to open next; 132 */
    int launches, graphs, moves; /* moves: copies to, from and within the card */
    int locked;             /* blocks of host memory now */
    uint64_t to_host, to_device, within;
} card_counts;
extern card_counts card;
/* The driver's calls. */
void card_api(cuda_api *);
/* A device of the engine on it. */
int card_open(ht_dev **, const char *opts, ht_err *);
#endif
