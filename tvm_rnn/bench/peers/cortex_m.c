/* A stream over the numbers of the file x.raw, to y.raw, on a bare Cortex-M; the instructions of a step, by SysTick: its
   clock is 25 MHz, and QEMU with -icount shift=0 runs an instruction in a nanosecond. -DHEADER, -DNAME: the network's; -DGIVEN: its inputs, which
   lie in x one after the other. */
#include <stdio.h>

#include HEADER

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)

extern int _start(void), __stack;

/* What a chip begins with: coprocessors on, where it has some. */
static void begin(void) {
  *(volatile unsigned *)0xE000ED88 |= 0xFu << 20;
  _start();
}

__attribute__((section(".vectors"), used)) static const void *const vectors[] = {&__stack, (const void *)begin};

static volatile unsigned *const control = (unsigned *)0xE000E010, *const reload = (unsigned *)0xE000E014,
                               *const current = (unsigned *)0xE000E018;
static NAME stream;

int main(void) {
  static NUMBER x[INPUTS], y[OUTPUTS];
  unsigned long long ticks = 0;
  unsigned long steps = 0;
  FILE *in = fopen("x.raw", "rb"), *out = fopen("y.raw", "wb");
  if (!in || !out) return 1;
  *reload = 0xFFFFFF, *current = 0, *control = 5;
  JOIN(NAME, _init)(&stream);
  while (fread(x, sizeof x, 1, in) == 1) {
    const unsigned begun = *current;
    JOIN(NAME, _step)(&stream, GIVEN, y);
    ticks += (begun - *current) & 0xFFFFFF, ++steps;
    if (fwrite(y, sizeof y, 1, out) != 1) return 1;
  }
  printf("instructions %lu\n", (unsigned long)(ticks * 40 / (steps ? steps : 1)));
  return fclose(out);
}
