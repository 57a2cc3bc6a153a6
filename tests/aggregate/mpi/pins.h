/* The structures of aggregate.h in version 0.1. Never change a line: a structure that grows gets new lines, and its size changes. */
#include <twinrun/aggregate.h>

#include "support/pins.h"

PIN_SIZE(twr_aggregate_options, 144);
PIN_MEMBER(twr_aggregate_options, size, 0);
PIN_MEMBER(twr_aggregate_options, files, 8);
PIN_MEMBER(twr_aggregate_options, nodes_per_file, 16);
PIN_MEMBER(twr_aggregate_options, aggregators, 20);
PIN_MEMBER(twr_aggregate_options, placement, 24);
PIN_MEMBER(twr_aggregate_options, topology, 32);
PIN_MEMBER(twr_aggregate_options, backend, 40);
PIN_MEMBER(twr_aggregate_options, buffers, 48);
PIN_MEMBER(twr_aggregate_options, buffer_bytes, 56);
PIN_MEMBER(twr_aggregate_options, block_bytes, 64);
PIN_MEMBER(twr_aggregate_options, sync, 72);
PIN_MEMBER(twr_aggregate_options, update, 76);
PIN_MEMBER(twr_aggregate_options, time_limit, 80);
PIN_MEMBER(twr_aggregate_options, seed, 88);
PIN_MEMBER(twr_aggregate_options, no_index, 96);
PIN_MEMBER(twr_aggregate_options, offsets, 104);
PIN_MEMBER(twr_aggregate_options, plan, 112);
PIN_MEMBER(twr_aggregate_options, overlap, 120);
/* Not at 124: programs of before left that place as it was. */
PIN_MEMBER(twr_aggregate_options, striping_unit, 128);
PIN_MEMBER(twr_aggregate_options, striping_factor, 136);

PIN_SIZE(twr_aggregate_variable, 40);
PIN_MEMBER(twr_aggregate_variable, item_bytes, 0);
PIN_MEMBER(twr_aggregate_variable, items, 8);
PIN_MEMBER(twr_aggregate_variable, file_offset, 16);
PIN_MEMBER(twr_aggregate_variable, file_stride, 24);
PIN_MEMBER(twr_aggregate_variable, memory_stride, 32);

PIN_SIZE(twr_aggregate_transfer, 104);
PIN_MEMBER(twr_aggregate_transfer, size, 0);
PIN_MEMBER(twr_aggregate_transfer, bytes, 8);
PIN_MEMBER(twr_aggregate_transfer, bytes_by_node_memory, 16);
PIN_MEMBER(twr_aggregate_transfer, bytes_from_other_nodes, 24);
PIN_MEMBER(twr_aggregate_transfer, bytes_direct, 32);
PIN_MEMBER(twr_aggregate_transfer, windows, 40);
PIN_MEMBER(twr_aggregate_transfer, total_seconds, 48);
PIN_MEMBER(twr_aggregate_transfer, gather_seconds, 56);
PIN_MEMBER(twr_aggregate_transfer, direct_seconds, 64);
PIN_MEMBER(twr_aggregate_transfer, storage_seconds, 72);
PIN_MEMBER(twr_aggregate_transfer, wait_seconds, 80);
PIN_MEMBER(twr_aggregate_transfer, sync_seconds, 88);
PIN_MEMBER(twr_aggregate_transfer, rename_seconds, 96);

PIN(TWR_RECORDS == 0 && TWR_BLOCKS == 1 && TWR_VARIABLES == 2);
