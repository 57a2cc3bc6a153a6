/* The structures of twinrun.h and compare.h in version 0.1. Never change a line: a structure that grows gets new lines, and its size changes. */
#include <twinrun/compare.h>

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

/* compare.h */
PIN_SIZE(twr_compare_options, 64);
PIN_MEMBER(twr_compare_options, size, 0);
PIN_MEMBER(twr_compare_options, atol, 8);
PIN_MEMBER(twr_compare_options, rtol, 16);
PIN_MEMBER(twr_compare_options, ulps, 24);
PIN_MEMBER(twr_compare_options, nan_differs, 32);
PIN_MEMBER(twr_compare_options, tolerate_integers, 36);
PIN_MEMBER(twr_compare_options, common, 40);
PIN_MEMBER(twr_compare_options, method, 44);
PIN_MEMBER(twr_compare_options, device, 48);
PIN_MEMBER(twr_compare_options, threads, 52);
PIN_MEMBER(twr_compare_options, memory_bytes, 56);

PIN_SIZE(twr_comparison_report, 88);
PIN_MEMBER(twr_comparison_report, size, 0);
PIN_MEMBER(twr_comparison_report, verdict, 8);
PIN_MEMBER(twr_comparison_report, fields, 16);
PIN_MEMBER(twr_comparison_report, different_fields, 24);
PIN_MEMBER(twr_comparison_report, first_field, 32);
PIN_MEMBER(twr_comparison_report, different, 40);
PIN_MEMBER(twr_comparison_report, problems, 48);
PIN_MEMBER(twr_comparison_report, notes, 56);
PIN_MEMBER(twr_comparison_report, bytes_compared, 64);
PIN_MEMBER(twr_comparison_report, bytes_read, 72);
PIN_MEMBER(twr_comparison_report, seconds, 80);

PIN_SIZE(twr_value, 16);
PIN_MEMBER(twr_value, dtype, 0);
PIN_MEMBER(twr_value, of, 8);

PIN_SIZE(twr_field_report, 304);
PIN_MEMBER(twr_field_report, size, 0);
PIN_MEMBER(twr_field_report, step, 8);
PIN_MEMBER(twr_field_report, rank, 16);
PIN_MEMBER(twr_field_report, dtype, 20);
PIN_MEMBER(twr_field_report, field, 24);
PIN_MEMBER(twr_field_report, dimensions, 32);
PIN_MEMBER(twr_field_report, index_length, 36);
PIN_MEMBER(twr_field_report, shape, 40);
PIN_MEMBER(twr_field_report, atol, 48);
PIN_MEMBER(twr_field_report, rtol, 56);
PIN_MEMBER(twr_field_report, ulps, 64);
PIN_MEMBER(twr_field_report, elements, 72);
PIN_MEMBER(twr_field_report, bytes, 80);
PIN_MEMBER(twr_field_report, different, 88);
PIN_MEMBER(twr_field_report, infinite, 96);
PIN_MEMBER(twr_field_report, first_index, 104);
PIN_MEMBER(twr_field_report, first_a, 112);
PIN_MEMBER(twr_field_report, first_b, 128);
PIN_MEMBER(twr_field_report, first_abs_diff, 144);
PIN_MEMBER(twr_field_report, max_abs_diff, 152);
PIN_MEMBER(twr_field_report, max_abs_diff_is_bound, 160);
PIN_MEMBER(twr_field_report, rms_diff_all_is_bound, 164);
PIN_MEMBER(twr_field_report, max_abs_diff_at_least, 168);
PIN_MEMBER(twr_field_report, max_abs_index, 176);
PIN_MEMBER(twr_field_report, max_abs_a, 184);
PIN_MEMBER(twr_field_report, max_abs_b, 200);
PIN_MEMBER(twr_field_report, max_rel_diff, 216);
PIN_MEMBER(twr_field_report, max_rel_index, 224);
PIN_MEMBER(twr_field_report, rms_diff, 232);
PIN_MEMBER(twr_field_report, rms_diff_all, 240);
PIN_MEMBER(twr_field_report, elements_read, 248);
PIN_MEMBER(twr_field_report, method, 256);
PIN_MEMBER(twr_field_report, reason, 264);
PIN_MEMBER(twr_field_report, kind, 272);
PIN_MEMBER(twr_field_report, different_is_exact, 280);
PIN_MEMBER(twr_field_report, first_chunk_begin, 288);
PIN_MEMBER(twr_field_report, first_chunk_end, 296);
PIN(TWR_DIFFERENT == 102 && TWR_INCOMPARABLE == 103);
PIN(TWR_METHOD_AUTO == 0 && TWR_METHOD_DIRECT == 1 && TWR_AS_CAPTURED == -1);
