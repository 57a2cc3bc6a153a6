// What fake_mpi.c and calls_fake.c agree on.
#pragma once

enum { kBad = 0xbad, kDouble = 8, kWorld = 1, kTwoGroups = 2, kRoot = -4 };
