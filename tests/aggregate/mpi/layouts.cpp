// Scenarios: large files, layouts of records, and where aggregators are.
#include <mpi.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <twinrun/aggregate.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "aggregate/topology/hosts.hpp"
#include "aggregate/topology/hwloc.hpp"
#include "declarations.hpp"
#include "elections.hpp"
#include "faults.hpp"
#include "job.hpp"
#include "scenarios.hpp"

namespace aggregate_ranks {

// Sizes beyond 32 bits. Zeros of memory that takes no room are noted where they would be written, and nothing is.
void large(const std::string& folder, bool direct) {
    const std::string path = folder + "/data";
    ::setenv("TWINRUN_AGGREGATE_DIRECT", direct ? "1" : "never", 1);
    twr_aggregate* const aggregate = made(TWR_AGGREGATE_OPTIONS_INIT);
    const std::uint64_t most =
        (std::uint64_t{1} << 31) + 12345;  // rank 0 alone has so many bytes, the others few
    const std::uint64_t bytes = me == 0 ? most : 1000;
    const std::uint64_t offset =
        (std::uint64_t{5} << 30) + 77 + (me == 0 ? 0 : most + 1000 * static_cast<std::uint64_t>(me - 1));
    void* const memory =
        ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    expect(memory != MAP_FAILED, "mmap");
    const twr_aggregate_variable variable = {1, bytes, offset, 0, 0};
    well(twr_aggregate_declare(aggregate, &variable, 1), "declare");
    faults::note_zeros(true);
    well(twr_aggregate_write(aggregate, path.c_str(), &memory), "write");
    std::vector<std::uint64_t> own;
    for (const faults::Noted& note : faults::noted()) {
        own.push_back(note.offset);
        own.push_back(note.bytes);
    }
    faults::note_zeros(false);
    int count = static_cast<int>(own.size());
    std::vector<int> counts(static_cast<std::size_t>(ranks));
    MPI_Gather(&count, 1, MPI_INT, counts.data(), 1, MPI_INT, 0, MPI_COMM_WORLD);
    std::vector<int> starts(counts.size(), 0);
    for (std::size_t i = 1; i < counts.size(); ++i)
        starts[i] = starts[i - 1] + counts[i - 1];
    std::vector<std::uint64_t> all(me == 0 ? static_cast<std::size_t>(starts.back() + counts.back()) : 1);
    MPI_Gatherv(own.data(), count, MPI_UINT64_T, all.data(), counts.data(), starts.data(), MPI_UINT64_T, 0,
                MPI_COMM_WORLD);
    if (me == 0) {
        std::vector<std::pair<std::uint64_t, std::uint64_t>> notes;
        for (std::size_t i = 0; i < all.size(); i += 2)
            notes.emplace_back(all[i], all[i + 1]);
        std::sort(notes.begin(), notes.end());
        std::uint64_t at = (std::uint64_t{5} << 30) + 77;
        for (const auto& [begin, length] : notes) {
            expect(begin == at, "a hole, or bytes written twice, at " + std::to_string(at));
            at += length;
        }
        expect(at == (std::uint64_t{5} << 30) + 77 + most + 1000 * static_cast<std::uint64_t>(ranks - 1),
               "the end");
    }
    ::munmap(memory, bytes);
    // Items far behind 4 GiB, really written, to a file of holes.
    const std::uint64_t far = (std::uint64_t{3} << 32) + 5;
    const twr_aggregate_variable items = {8, 3, far + 8 * static_cast<std::uint64_t>(me),
                                          std::uint64_t{1} << 32, 0};
    std::vector<std::uint64_t> values = {1000 + static_cast<std::uint64_t>(me),
                                         2000 + static_cast<std::uint64_t>(me), 3000};
    void* data = values.data();
    well(twr_aggregate_declare(aggregate, &items, 1), "declare");
    well(twr_aggregate_write(aggregate, path.c_str(), &data), "write");
    std::vector<std::uint64_t> back(3, 0);
    data = back.data();
    well(twr_aggregate_read(aggregate, path.c_str(), &data), "read");
    expect(back == values, "other values come back");
    if (me == 0) {
        struct stat about {};
        expect(::stat(path.c_str(), &about) == 0, "stat");
        const auto n = static_cast<std::uint64_t>(ranks);
        expect(static_cast<std::uint64_t>(about.st_size) == far + (std::uint64_t{2} << 32) + 8 * n,
               "the file's size");
        expect(static_cast<std::uint64_t>(about.st_blocks) * 512 < (std::uint64_t{1} << 20),
               "the holes were written");
    }
    twr_aggregate_free(aggregate);
}

// Layouts of records, and what the report says.
void records(const std::string& folder) {
    const std::string path = folder + "/data";
    const std::vector<std::uint64_t> sizes = {4, 4, 8, 2};
    const std::uint64_t record = 18;
    for (const int layout : {TWR_RECORDS, TWR_BLOCKS, TWR_VARIABLES}) {
        doing = "records " + std::to_string(layout);
        twr_aggregate* const aggregate = made(TWR_AGGREGATE_OPTIONS_INIT);
        std::vector<std::uint64_t> items;
        std::uint64_t total = 0;
        for (int rank = 0; rank < ranks; ++rank) {
            items.push_back(rank % 3 == 1 ? 0 : 700 + 13 * static_cast<std::uint64_t>(rank));
            total += items.back();
        }
        const std::uint64_t offset = 100;
        Declarations all;
        std::uint64_t before = 0;
        for (int rank = 0; rank < ranks; ++rank) {
            const std::uint64_t n = items[static_cast<std::size_t>(rank)];
            std::vector<Variable> own;
            std::uint64_t passed = 0;
            for (const std::uint64_t size : sizes) {
                if (layout == TWR_RECORDS)
                    own.push_back({{size, n, offset + record * before + passed, record, 0}});
                if (layout == TWR_BLOCKS)
                    own.push_back({{size, n, offset + record * before + passed * n, 0, 0}});
                if (layout == TWR_VARIABLES)
                    own.push_back({{size, n, offset + passed * total + size * before, 0, 0}});
                passed += size;
            }
            all.push_back(own);
            before += n;
        }
        well(twr_aggregate_declare_records(aggregate, sizes.data(), 4, items[static_cast<std::size_t>(me)],
                                           layout, offset),
             "declare_records");
        Arrays arrays = arrays_of(all[static_cast<std::size_t>(me)], me, 3);
        const auto data = pointers(arrays);
        well(twr_aggregate_write(aggregate, path.c_str(), data.data()), "write");
        has_file(path, expected_file(all, 3, {}));
        const nlohmann::json said = report(aggregate);
        expect(said.at("ranks") == ranks && said.at("files") == 1, said.dump());
        expect(said.at("declared").at("bytes") == record * total, said.dump());
        expect(said.at("write").at("path") == path && said.at("write").at("seconds").at("total") > 0,
               said.dump());
        const std::string text = twr_aggregate_report(aggregate);
        std::uint64_t hash = std::hash<std::string>()(text);
        std::uint64_t least = 0;
        MPI_Allreduce(&hash, &least, 1, MPI_UINT64_T, MPI_MIN, MPI_COMM_WORLD);
        expect(hash == least, "the report differs from rank to rank");
        twr_aggregate_free(aggregate);
    }
}

// How members reach their aggregators: partitions with no rank in common, of ranks that lie on one node or on several, and others.
// Nodes of MPICH's, faked, are ranks in turns or in blocks: of the two orders one has partitions of several nodes.
void members(const std::string& folder, int nodes_wanted) {
    const std::string path = folder + "/data";
    expect(ranks == 4, "4 ranks");
    const auto node_of = nodes();
    expect(*std::max_element(node_of.begin(), node_of.end()) + 1 == static_cast<std::uint32_t>(nodes_wanted),
           "the nodes");
    twr_aggregate_options options = TWR_AGGREGATE_OPTIONS_INIT;
    options.aggregators = 2;
    options.block_bytes = 4096;
    const std::vector<std::vector<std::uint64_t>> orders = {{0, 1, 2, 3}, {0, 2, 1, 3}};
    int split = 0;
    int file = 0;
    for (const char* const direct : {"never", "1"}) {
        ::setenv("TWINRUN_AGGREGATE_DIRECT", direct, 1);
        for (const auto& order : orders) {
            for (const std::uint64_t shift : {0, 4096}) {
                twr_aggregate* const aggregate = made(options);
                Declarations all(4);
                for (std::size_t rank = 0; rank < 4; ++rank)
                    all[rank] = {{{1, 8192, 8192 * order[rank] + shift / 2, 0, 0}}};
                if (shift != 0) all[0].push_back({{1, 10, 8192 * 4 + shift, 0, 0}});  // a rank at both ends
                Arrays arrays = arrays_of(all[static_cast<std::size_t>(me)], me, 1);
                const auto data = pointers(arrays);
                const auto declared = plain(all[static_cast<std::size_t>(me)]);
                well(twr_aggregate_declare(aggregate, declared.data(), static_cast<int>(declared.size())),
                     "declare");
                for (int again = 0; again < 3; ++again)
                    well(twr_aggregate_write(aggregate, path.c_str(), data.data()), "write");
                has_file(path, expected_file(all, 1, {}));
                const std::string said = report(aggregate).at("declared").at("members");
                split += said == "one coloured split" ? 1 : 0;
                file += said == "communicator of the file" ? 1 : 0;
                expect(nodes_wanted > 1 || said == "node memory", said);
                twr_aggregate_free(aggregate);
            }
        }
    }
    expect(nodes_wanted == 1 || (split > 0 && file > 0),
           "split " + std::to_string(split) + ", file " + std::to_string(file));
}

// A host as hwloc would see it, faked: the report's partitions and aggregators are those of the serial functions on its cores.
void places(const std::string& folder) {
    const std::string path = folder + "/data";
    const std::string machine = "hwloc:synthetic:pack:2 numa:2 core:2 pu:1,package=3e9";
    const auto host = twinrun::ask_hwloc(*twinrun::parse_hwloc(machine));
    if (!host.ok()) {
        if (me == 0) std::printf("skipped: %s\n", host.error().message.c_str());
        return;
    }
    const std::vector<std::uint32_t> node_of = nodes();
    const std::uint32_t hosts = *std::max_element(node_of.begin(), node_of.end()) + 1;
    std::vector<std::uint32_t> place_of;  // on a node, ranks are on cores in their order
    std::vector<twinrun::HostPlace> all_places;
    std::vector<std::uint32_t> on_node(hosts, 0);
    for (const std::uint32_t node : node_of) {
        place_of.push_back(static_cast<std::uint32_t>(all_places.size()));
        all_places.push_back({node, host->cores[on_node[node]++ % host->cores.size()]});
    }
    const auto parsed = *twinrun::parse_hwloc(machine);
    const auto topology =
        twinrun::make_places(*twinrun::topology_of_hosts("auto", std::vector<twinrun::Host>(hosts)),
                             all_places, parsed.inner, "expected");
    expect(topology.ok(), "the topology");
    for (int round = 0; round < 12; ++round) {
        doing = "places " + std::to_string(round);
        Declarations all;
        std::uint64_t offset = 0;
        for (int rank = 0; rank < ranks; ++rank) {
            const std::uint64_t bytes =
                1000 * static_cast<std::uint64_t>(1 + (rank * 7 + round * 5) % 11) + (round == 0 ? 0 : 17);
            all.push_back({{{1, bytes, offset, 0, 0}}});
            offset += bytes;
        }
        twr_aggregate_options options = TWR_AGGREGATE_OPTIONS_INIT;
        options.topology = machine.c_str();
        options.placement = "cost";
        options.aggregators = 1 + round % 3;
        options.block_bytes = 512;
        twr_aggregate* const aggregate = made(options);
        Arrays arrays = arrays_of(all[static_cast<std::size_t>(me)], me, 1);
        const auto data = pointers(arrays);
        const auto declared = plain(all[static_cast<std::size_t>(me)]);
        well(twr_aggregate_declare(aggregate, declared.data(), static_cast<int>(declared.size())), "declare");
        well(twr_aggregate_write(aggregate, path.c_str(), data.data()), "write");
        has_file(path, expected_file(all, 1, {}));
        same_election_on(**topology, aggregate, all, options, place_of, hosts);
        const nlohmann::json said = report(aggregate);
        expect(said.at("topology").get<std::string>().starts_with("hwloc"), said.dump());
        expect(said.at("declared").at("partitions")[0].at("place").get<std::string>().find("core") !=
                   std::string::npos,
               said.dump());
        twr_aggregate_free(aggregate);
    }
    // Where these processes are: whatever they are bound to, the bytes are right.
    twr_aggregate_options options = TWR_AGGREGATE_OPTIONS_INIT;
    options.topology = "hwloc";
    twr_aggregate* const aggregate = made(options);
    const Sample sample(1000);
    well(sample.declare(aggregate), "declare");
    well(twr_aggregate_write(aggregate, path.c_str(), sample.data.data()), "write");
    has_file(path, sample.file);
    if (me == 0) std::printf("%s\n", report(aggregate).at("topology").dump().c_str());
    twr_aggregate_free(aggregate);
    options.topology = "hwloc,hosts=2";
    twr_aggregate* none = nullptr;
    fails(twr_aggregate_create(&none, MPI_COMM_WORLD, &options), TWR_ERROR_INVALID_ARGUMENT, {"hosts="});
    options.topology = "hwloc:synthetic:nothing that is";
    const int refused = twr_aggregate_create(&none, MPI_COMM_WORLD, &options);
    expect(refused == TWR_ERROR_INVALID_ARGUMENT || refused == TWR_ERROR_OTHER_RANK, "a topology of nothing");
}

}  // namespace aggregate_ranks
