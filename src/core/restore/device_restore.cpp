#include "restore/device_restore.hpp"

#include <algorithm>
#include <new>
#include <utility>
#include <vector>

#include "base/checked.hpp"
#include "dedup/chunk_hash.hpp"
#include "dedup/dedup_device.hpp"

namespace twinrun {

namespace {

constexpr std::uint64_t kSliceBytes = std::uint64_t{256} << 20;

// Runs of a slice of the segment, with the payload that they need as one dense array.
struct Gathered {
    std::vector<Run> payload;  // begin: in the array
    std::uint64_t payload_chunks = 0;
    std::vector<DeviceScatterRun> runs;
    std::uint64_t chunks = 0;
};

Gathered gather(const StepMap& map, std::uint64_t begin, std::uint64_t end, std::uint64_t segment_first) {
    Gathered all;
    struct Needed {
        Location first;
        Location end;
        std::uint64_t at;
    };
    std::vector<Run> runs;
    auto run = std::upper_bound(map.runs.begin(), map.runs.end(), begin,
                                [](std::uint64_t place, const Run& r) { return place < r.begin; });
    if (run != map.runs.begin()) --run;
    for (; run != map.runs.end() && run->begin < end; ++run) {
        const std::uint64_t from = std::max(begin, run->begin);
        const std::uint64_t until = std::min(end, run->begin + run->count);
        if (from >= until) continue;
        runs.push_back({from - segment_first, until - from,
                        run->repeat ? run->source : run->source + (from - run->begin), run->repeat});
    }
    std::vector<Needed> needed;
    needed.reserve(runs.size());
    for (const Run& r : runs)
        needed.push_back({r.source, r.source + (r.repeat ? 1 : r.count), 0});
    std::sort(needed.begin(), needed.end(),
              [](const Needed& a, const Needed& b) { return a.first < b.first; });
    std::vector<Needed> joined;
    for (const Needed& n : needed) {
        if (!joined.empty() && n.first <= joined.back().end) {
            joined.back().end = std::max(joined.back().end, n.end);
        } else {
            joined.push_back(n);
        }
    }
    for (Needed& n : joined) {
        n.at = all.payload_chunks;
        all.payload.push_back({n.at, n.end - n.first, n.first, false});
        all.payload_chunks += n.end - n.first;
    }
    all.runs.reserve(runs.size());
    for (const Run& r : runs) {
        const auto in =
            std::prev(std::upper_bound(joined.begin(), joined.end(), r.source,
                                       [](Location at, const Needed& n) { return at < n.first; }));
        all.runs.push_back(
            {r.begin, r.count, in->at + (r.source - in->first), all.chunks, r.repeat ? 1U : 0U});
        all.chunks += r.count;
    }
    return all;
}

}  // namespace

Result<> read_segment_to_device(RecordChain& chain, const StepMap& map, std::size_t segment, int device,
                                std::byte* to, StreamHandle stream) try {
    const auto* const kernels = static_cast<const DeviceDedupKernels*>(device_table("dedup"));
    const DeviceRuntime* const runtime = device_runtime();
    if (kernels == nullptr || runtime == nullptr)
        return Error{ErrorCode::unsupported, "no library for devices"};
    const RecordSegment& expected = map.directory.segments[segment];
    const std::uint64_t chunk = map.chunk_bytes;
    const std::uint64_t first = map.firsts[segment];
    const std::uint64_t chunks = map.firsts[segment + 1] - first;
    if (chunks == 0) return success();
    const std::uint64_t slice = std::max<std::uint64_t>(1, kSliceBytes / chunk);
    DeviceMemory host[2];  // page-locked: one is filled while the other one is copied
    DeviceMemory on_device[2];
    TWR_TRY(DeviceStream own, DeviceStream::create(device));
    TWR_CHECK(own.follow(stream));
    const auto run_bytes = [](const Gathered& g) {
        return round_up(g.runs.size() * sizeof(DeviceScatterRun), 256);
    };
    std::size_t turn = 0;
    for (std::uint64_t begin = 0; begin < chunks; begin += slice, turn ^= 1) {
        const Gathered all = gather(map, first + begin, first + std::min(chunks, begin + slice), first);
        const std::uint64_t bytes = run_bytes(all) + all.payload_chunks * chunk;
        // The work put into this half two slices ago is done, because each slice waits for the one
        // before it.
        TWR_CHECK(host[turn].reserve(kHostMemory, bytes));
        std::copy(all.runs.begin(), all.runs.end(), host[turn].as<DeviceScatterRun>());
        TWR_CHECK(chain.read_payload(all.payload, map.chunk_bytes,
                                     {host[turn].data() + run_bytes(all), all.payload_chunks * chunk}));
        TWR_CHECK(own.wait());
        TWR_CHECK(on_device[turn].reserve(device, bytes));
        TWR_CHECK(
            to_result(runtime->copy(device, on_device[turn].data(), host[turn].data(), bytes, own.get())));
        DeviceScatter scatter;
        scatter.chunk_bytes = map.chunk_bytes;
        scatter.runs = on_device[turn].as<DeviceScatterRun>();
        scatter.run_count = all.runs.size();
        scatter.chunks = all.chunks;
        scatter.payload = on_device[turn].data() + run_bytes(all);
        scatter.to = to;
        scatter.bytes = expected.bytes;
        TWR_CHECK(to_result(kernels->scatter(device, scatter, own.get())));
    }
    TWR_CHECK(own.wait());
    // Taken as it was: every byte has been checked.
    if (expected.content == 0) return own.lead(stream);

    std::uint64_t content = 0;
    for (std::uint64_t begin = 0; begin < chunks; begin += slice) {
        const auto count = static_cast<std::uint32_t>(std::min(slice, chunks - begin));
        DeviceDedupPart part;
        part.data = to + begin * chunk;
        part.bytes = std::min(expected.bytes - begin * chunk, std::uint64_t{count} * chunk);
        part.number = begin;
        part.chunks = count;
        TWR_CHECK(host[0].reserve(kHostMemory, 256 + sizeof(part)));
        TWR_CHECK(on_device[0].reserve(device, 256 + sizeof(part)));
        *host[0].as<std::uint64_t>() = content;
        *host[0].as<DeviceDedupPart>(256) = part;
        TWR_CHECK(to_result(
            runtime->copy(device, on_device[0].data(), host[0].data(), 256 + sizeof(part), own.get())));
        DeviceDedupSlice all;
        all.chunk_bytes = map.chunk_bytes;
        all.chunks = count;
        all.parts = on_device[0].as<DeviceDedupPart>(256);
        all.part_count = 1;
        all.groups = static_cast<std::uint32_t>(divide_up(count, dedup_group_chunks(map.chunk_bytes)));
        all.content = on_device[0].as<std::uint64_t>();
        TWR_CHECK(to_result(kernels->hash_content(device, all, own.get())));
        TWR_CHECK(to_result(runtime->copy(device, host[0].data(), on_device[0].data(), 8, own.get())));
        TWR_CHECK(own.wait());
        content = *host[0].as<std::uint64_t>();
    }
    if (content != expected.content) {
        return Error{ErrorCode::damaged, "segment '" + expected.name + "' of difference " +
                                             std::to_string(map.ordinal) +
                                             ": its bytes are not those that were recorded"};
    }
    return own.lead(stream);
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, "not enough memory to read a record"};
}

}  // namespace twinrun
