/* The structures of twinrun.h in version 0.1. Never change a line: a structure that grows gets new lines, and its size changes. */
#include <twinrun/twinrun.h>

#include "support/pins.h"

PIN_SIZE(twr_comm, 40);
PIN_MEMBER(twr_comm, context, 0);
PIN_MEMBER(twr_comm, rank, 8);
PIN_MEMBER(twr_comm, size, 12);
PIN_MEMBER(twr_comm, minimum, 16);
PIN_MEMBER(twr_comm, broadcast, 24);
PIN_MEMBER(twr_comm, release, 32);

PIN_SIZE(twr_shared_part, 64);
PIN_MEMBER(twr_shared_part, size, 0);
PIN_MEMBER(twr_shared_part, ordinal, 8);
PIN_MEMBER(twr_shared_part, folder, 16);
PIN_MEMBER(twr_shared_part, bytes, 24);
PIN_MEMBER(twr_shared_part, byte_count, 32);
PIN_MEMBER(twr_shared_part, well, 40);
PIN_MEMBER(twr_shared_part, offset, 48);
PIN_MEMBER(twr_shared_part, file_bytes, 56);

PIN_SIZE(twr_shared_files, 40);
PIN_MEMBER(twr_shared_files, size, 0);
PIN_MEMBER(twr_shared_files, context, 8);
PIN_MEMBER(twr_shared_files, prepare, 16);
PIN_MEMBER(twr_shared_files, write, 24);
PIN_MEMBER(twr_shared_files, release, 32);

PIN_SIZE(twr_array, 112);
PIN_MEMBER(twr_array, size, 0);
PIN_MEMBER(twr_array, name, 8);
PIN_MEMBER(twr_array, data, 16);
PIN_MEMBER(twr_array, dtype, 24);
PIN_MEMBER(twr_array, order, 28);
PIN_MEMBER(twr_array, dimensions, 32);
PIN_MEMBER(twr_array, shape, 40);
PIN_MEMBER(twr_array, strides, 48);
PIN_MEMBER(twr_array, global_shape, 56);
PIN_MEMBER(twr_array, global_offset, 64);
PIN_MEMBER(twr_array, atol, 72);
PIN_MEMBER(twr_array, rtol, 80);
PIN_MEMBER(twr_array, ids, 88);
PIN_MEMBER(twr_array, device, 96);
PIN_MEMBER(twr_array, stream, 104);

PIN_SIZE(twr_report, 64);
PIN_MEMBER(twr_report, size, 0);
PIN_MEMBER(twr_report, step, 8);
PIN_MEMBER(twr_report, seconds, 16);
PIN_MEMBER(twr_report, waited_seconds, 24);
PIN_MEMBER(twr_report, data_bytes, 32);
PIN_MEMBER(twr_report, staged_bytes, 40);
PIN_MEMBER(twr_report, diverged, 48);
PIN_MEMBER(twr_report, pending_steps, 56);

PIN_SIZE(twr_divergence, 64);
PIN_MEMBER(twr_divergence, size, 0);
PIN_MEMBER(twr_divergence, step, 8);
PIN_MEMBER(twr_divergence, rank, 16);
PIN_MEMBER(twr_divergence, field, 24);
PIN_MEMBER(twr_divergence, first_item, 32);
PIN_MEMBER(twr_divergence, chunks, 40);
PIN_MEMBER(twr_divergence, chunks_in_all, 48);
PIN_MEMBER(twr_divergence, reason, 56);

/* Numbers: of codes, types, orders and places. Enumerations are ints. */
PIN_SIZE(twr_status, 4);
PIN(TWR_OK == 0 && TWR_ERROR_INVALID_ARGUMENT == 1 && TWR_ERROR_NOT_FOUND == 2 && TWR_ERROR_IO == 3);
PIN(TWR_ERROR_NO_SPACE == 4 && TWR_ERROR_DAMAGED == 5 && TWR_ERROR_UNSUPPORTED == 6 && TWR_ERROR_STALE == 7);
PIN(TWR_ERROR_MISMATCH == 8 && TWR_ERROR_OUT_OF_MEMORY == 9 && TWR_ERROR_INTERRUPTED == 10);
PIN(TWR_ERROR_INTERNAL == 11 && TWR_ERROR_OTHER_RANK == 12 && TWR_DIVERGED == 100 && TWR_STEP_LOST == 101);
PIN(TWR_F16 == 1 && TWR_BF16 == 2 && TWR_F32 == 3 && TWR_F64 == 4 && TWR_I8 == 5 && TWR_I16 == 6);
PIN(TWR_I32 == 7 && TWR_I64 == 8 && TWR_U8 == 9 && TWR_U16 == 10 && TWR_U32 == 11 && TWR_U64 == 12);
PIN(TWR_BOOL == 13 && TWR_C64 == 14 && TWR_C128 == 15);
PIN(TWR_ROW_MAJOR == 0 && TWR_COLUMN_MAJOR == 1);
PIN(TWR_HOST == -1 && TWR_DETECT == -2 && TWR_DETECT_DEVICE == -3);
