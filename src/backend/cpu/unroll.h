/* unroll.h - how the bodies are compiled. A file defines CPU_UNROLLED before including one: 1 where
 * vectors are registers, so that types and counts become constants of a straight line of code; 0
 * for plain C, which would only grow by it. */
#ifndef HT_BACKEND_CPU_UNROLL_H
#define HT_BACKEND_CPU_UNROLL_H
#include "backend/cpu/kern.h"

/* The attribute of an instruction set that the file is not compiled for; part of its INL too. */
#ifndef CPU_TARGET
#define CPU_TARGET
#endif

#if CPU_UNROLLED
#define KERN INL
#define UNROLL_(n) _Pragma(#n)
#define UNROLL(n) UNROLL_(GCC unroll n)
#else
#define KERN static __attribute__((noinline)) CPU_TARGET
#define UNROLL(n)
#endif
#endif
