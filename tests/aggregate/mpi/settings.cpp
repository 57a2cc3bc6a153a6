// Scenarios: settings and reports.
#include <mpi.h>
#include <sys/stat.h>
#include <twinrun/aggregate.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "declarations.hpp"
#include "job.hpp"
#include "scenarios.hpp"

namespace aggregate_ranks {

// Settings as text: their names are those of the document, and they do what the structure does.
void settings(const std::string& folder) {
    twr_aggregate_settings* given = nullptr;
    fails(twr_aggregate_settings_create(nullptr), TWR_ERROR_INVALID_ARGUMENT, {"settings is NULL"});
    well(twr_aggregate_settings_create(&given), "settings_create");
    const auto set = [&](const char* name, const char* value) {
        return twr_aggregate_settings_set(given, name, value);
    };
    fails(twr_aggregate_settings_set(nullptr, "sync", "1"), TWR_ERROR_INVALID_ARGUMENT, {"settings is NULL"});
    fails(set(nullptr, "1"), TWR_ERROR_INVALID_ARGUMENT, {"name is NULL"});
    fails(set("sync", nullptr), TWR_ERROR_INVALID_ARGUMENT, {"sync", "NULL"});
    const std::vector<std::pair<const char*, std::vector<const char*>>> wrong = {
        {"files", {"two", ""}},
        {"nodes_per_file", {"-1", "one", "99999999999"}},
        {"aggregators", {"-1", "1.5"}},
        {"placement", {"best"}},
        {"topology", {""}},
        {"backend", {"hdf5"}},
        {"buffers", {"1", "257", "-2"}},
        {"buffer_bytes", {"-1", "1 parsec", "1e20", "18446744073709551615"}},
        {"block_bytes", {"many", "300 TiB"}},
        {"sync", {"2", "perhaps"}},
        {"update", {""}},
        {"time_limit", {"soon", "nan", "inf", "5 s"}},
        {"seed", {"-1", "0x7"}},
        {"no_index", {"index"}},
        {"offsets", {"", "global"}},
        {"overlap", {"", "2"}},
        {"striping_factor", {"-2", "65536", "some"}},
        {"striping_unit", {"-1", "65537", "4 GiB", "32 KiB"}}};
    for (const auto& [name, values] : wrong) {
        for (const char* const value : values)
            fails(set(name, value), TWR_ERROR_INVALID_ARGUMENT,
                  {std::string(name) + " = '" + value + "'", "give "});
    }

    // The table in docs/reference/aggregate.md: | `name` | `an example` | ...
    std::ifstream document(TWINRUN_SOURCE_DIR "/docs/reference/aggregate.md");
    std::set<std::string> documented;
    bool in_table = false;
    for (std::string line; std::getline(document, line);) {
        in_table = line.rfind("| setting", 0) == 0 || (in_table && line.rfind('|', 0) == 0);
        if (!in_table || line.rfind("| `", 0) != 0) continue;
        std::istringstream cells(line);
        std::string skipped;
        std::string name;
        std::string value;
        std::getline(cells, skipped, '`');
        std::getline(cells, name, '`');
        std::getline(cells, skipped, '`');
        std::getline(cells, value, '`');
        well(set(name.c_str(), value.c_str()), name.c_str());
        documented.insert(name);
    }
    expect(set("?", "1") == TWR_ERROR_INVALID_ARGUMENT, "a setting of the name ?");
    std::string message = twr_error_message();
    message.erase(0, message.find("there are ") + 10);
    std::set<std::string> known;
    std::istringstream names(message);
    for (std::string name; std::getline(names >> std::ws, name, ',');)
        known.insert(name);
    expect(known.size() == 19 && known == documented,
           "docs/reference/aggregate.md has other settings than: " + message);
    twr_aggregate_settings_destroy(given);
    twr_aggregate_settings_destroy(nullptr);

    // A file, all of it or nothing.
    const std::string file = folder + "/settings-" + std::to_string(me);
    const auto load = [&](const std::string& text) {
        std::ofstream(file) << text;
        return twr_aggregate_settings_load(given, file.c_str());
    };
    well(twr_aggregate_settings_create(&given), "settings_create");
    fails(twr_aggregate_settings_load(given, nullptr), TWR_ERROR_INVALID_ARGUMENT, {"path is NULL"});
    fails(twr_aggregate_settings_load(given, (folder + "/none").c_str()), TWR_ERROR_NOT_FOUND, {"/none"});
    fails(load("files = rank\nnonsense = 1\n"), TWR_ERROR_INVALID_ARGUMENT, {file + ":2", "nonsense"});
    fails(load("files\n"), TWR_ERROR_INVALID_ARGUMENT, {file + ":1", "name = value"});
    fails(load(std::string((1 << 20) + 1, '#')), TWR_ERROR_DAMAGED, {file});
    well(load("# of this test\n backend=posix\nplacement = random # which\n\nseed = 7\nbuffers = 3"), "load");

    twr_aggregate* aggregate = nullptr;
    const int last = ranks - 1;
    const auto report = [&] { return nlohmann::json::parse(twr_aggregate_report(aggregate)); };
    fails(twr_aggregate_create_with(nullptr, MPI_COMM_WORLD, given), TWR_ERROR_INVALID_ARGUMENT, {"NULL"});
    well(twr_aggregate_create_with(&aggregate, MPI_COMM_WORLD, given), "create_with");
    expect(report()["files"] == 1 && report()["placement"] == "random" && report()["buffers"] == 3, "report");
    twr_aggregate_free(aggregate);
    // They are of later aggregates only, and must be the same on all ranks.
    well(set("files", "rank"), "set");
    if (ranks > 1) {
        if (me == last) well(set("sync", "true"), "set");
        fails_on(last, twr_aggregate_create_with(&aggregate, MPI_COMM_WORLD, given),
                 TWR_ERROR_INVALID_ARGUMENT, {"settings differ"});
        expect(aggregate == nullptr, "an aggregate after an error");
    }
    well(set("sync", "true"), "set");
    well(twr_aggregate_create_with(&aggregate, MPI_COMM_WORLD, given), "create_with");
    twr_aggregate_settings_destroy(given);
    expect(report()["files"] == ranks && report()["sync"] == true, "report");
    twr_aggregate_free(aggregate);
    well(twr_aggregate_create_with(&aggregate, MPI_COMM_WORLD, nullptr), "create_with");
    twr_aggregate_free(aggregate);

    // The structure of another version: an older one has no `no_index`, what a newer one has besides is 0.
    struct {
        twr_aggregate_options options = TWR_AGGREGATE_OPTIONS_INIT;
        std::uint64_t later = 0;
    } newer;
    newer.options.files = "rank";
    newer.options.no_index = 0x5A5A5A5A;
    newer.options.size = offsetof(twr_aggregate_options, no_index);
    aggregate = made(newer.options);
    const Sample sample(50);
    well(sample.declare(aggregate), "declare");
    const std::string path = folder + "/data";
    well(twr_aggregate_write(aggregate, path.c_str(), sample.data.data()), "write");
    expect(std::filesystem::exists(path + ".twr-index") == (ranks > 1), "the index of an older caller");
    twr_aggregate_free(aggregate);
    newer.options.no_index = 0;
    newer.options.size = sizeof newer;
    twr_aggregate_free(made(newer.options));
    newer.later = me == last ? 1 : 0;
    fails_on(last, twr_aggregate_create(&aggregate, MPI_COMM_WORLD, &newer.options), TWR_ERROR_UNSUPPORTED,
             {"twr_aggregate_options"});
}

// The figures of a transfer are those of the report.
void reports(const std::string& folder) {
    twr_aggregate* const aggregate = made(TWR_AGGREGATE_OPTIONS_INIT);
    twr_aggregate_transfer figures = {};
    figures.size = sizeof figures;
    fails(twr_aggregate_last_write(nullptr, &figures), TWR_ERROR_INVALID_ARGUMENT, {"aggregate is NULL"});
    fails(twr_aggregate_last_read(aggregate, nullptr), TWR_ERROR_INVALID_ARGUMENT, {"transfer is NULL"});
    fails(twr_aggregate_last_write(aggregate, &figures), TWR_ERROR_NOT_FOUND, {"written"});
    fails(twr_aggregate_last_read(aggregate, &figures), TWR_ERROR_NOT_FOUND, {"read"});
    expect(std::strcmp(twr_aggregate_report(nullptr), "{}") == 0, "a report of nothing");
    const Sample sample(300);
    well(sample.declare(aggregate), "declare");
    const std::string path = folder + "/data";
    well(twr_aggregate_write(aggregate, path.c_str(), sample.data.data()), "write");
    well(twr_aggregate_read(aggregate, path.c_str(), sample.data.data()), "read");
    const nlohmann::json report = nlohmann::json::parse(twr_aggregate_report(aggregate));
    for (const char* const of : {"write", "read"}) {
        const bool written = std::strcmp(of, "write") == 0;
        well((written ? twr_aggregate_last_write : twr_aggregate_last_read)(aggregate, &figures), of);
        const nlohmann::json& r = report[of];
        expect(figures.bytes == sample.file.size() && r["bytes"] == figures.bytes &&
                   r["bytes_by_node_memory"] == figures.bytes_by_node_memory &&
                   r["bytes_from_other_nodes"] == figures.bytes_from_other_nodes &&
                   r["bytes_direct"] == figures.bytes_direct && r["windows"] == figures.windows,
               "the figures of a " + std::string(of));
        const nlohmann::json& seconds = r["seconds"];
        expect(figures.total_seconds > 0 && seconds["total"] == figures.total_seconds &&
                   seconds["gather"] == figures.gather_seconds &&
                   seconds["direct"] == figures.direct_seconds &&
                   seconds["storage"] == figures.storage_seconds && seconds["wait"] == figures.wait_seconds,
               "the seconds of a " + std::string(of));
        expect(!written ||
                   (seconds["sync"] == figures.sync_seconds && seconds["rename"] == figures.rename_seconds),
               "the seconds of a write");
    }
    for (const std::size_t size : {std::size_t{0}, sizeof figures - 8, std::size_t{1} << 40}) {
        figures.size = size;
        fails(twr_aggregate_last_write(aggregate, &figures), TWR_ERROR_INVALID_ARGUMENT,
              {"sizeof(twr_aggregate_transfer)"});
    }
    twr_aggregate_free(aggregate);
}

// After MPI_Finalize.
void finalised() {
    twr_aggregate* const aggregate = made(TWR_AGGREGATE_OPTIONS_INIT);
    const Sample sample(100);
    well(sample.declare(aggregate), "declare");
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    twr_aggregate_free(aggregate);
    twr_aggregate* other = nullptr;
    fails(twr_aggregate_create(&other, MPI_COMM_WORLD, nullptr), TWR_ERROR_INVALID_ARGUMENT, {"MPI"});
    if (me == 0) std::printf("done\n");
}

}  // namespace aggregate_ranks
