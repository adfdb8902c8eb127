// SPDX-License-Identifier: MIT
// The calls of System V and BSD for signals: sighold(), sigrelse(), sigignore(), sigset() and siginterrupt().
#include "signals_parked.h"

int main() {
  begin();
  handle(SIGUSR1, 0);
  handle(SIGUSR2, 0);
  mask(SIG_UNBLOCK, SIGUSR2);
  printf("sighold %d, ", sighold(SIGUSR2));
  raise(SIGUSR2);
  printf("pending %d, ", is_pending(SIGUSR2));
  printf("sigrelse %d, ", sigrelse(SIGUSR2));
  printf("pending %d\n", is_pending(SIGUSR2));
  printf("sigignore %d, ", sigignore(SIGUSR2));
  raise(SIGUSR2);
  printf("sigset %d, ", sigset(SIGUSR2, SIG_HOLD) == SIG_IGN);
  printf("hold %d\n", sigset(SIGUSR2, SIG_DFL) == SIG_HOLD);
  handle(SIGUSR2, SA_RESTART);
  struct sigaction sa;
  siginterrupt(SIGUSR2, 1);
  sigaction(SIGUSR2, NULL, &sa);
  printf("siginterrupt: %d", !!(sa.sa_flags & SA_RESTART));
  siginterrupt(SIGUSR2, 0);
  sigaction(SIGUSR2, NULL, &sa);
  printf(" %d\n", !!(sa.sa_flags & SA_RESTART));
  return 0;
}
