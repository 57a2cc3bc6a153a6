// Scenario: saved plans.
#include <mpi.h>
#include <sys/stat.h>
#include <twinrun/aggregate.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "declarations.hpp"
#include "job.hpp"
#include "scenarios.hpp"

namespace aggregate_ranks {

namespace {

void by_one(const std::function<void()>& what) {
    if (me == 0) what();
    MPI_Barrier(MPI_COMM_WORLD);
}

std::vector<std::uint8_t> text(const std::string& words) { return {words.begin(), words.end()}; }

}  // namespace

void plans(const std::string& folder) {
    const std::string path = folder + "/data";
    const std::string file = folder + "/plans.json";
    twr_aggregate_options options = TWR_AGGREGATE_OPTIONS_INIT;
    options.aggregators = ranks;
    options.block_bytes = 512;
    options.plan = file.c_str();
    // Declares, writes and reads; returns what the report says of the declaration.
    const auto one = [&](std::uint64_t items, std::uint64_t salt) {
        twr_aggregate* const aggregate = made(options);
        const Sample sample(items, salt);
        well(sample.declare(aggregate), "declare");
        well(twr_aggregate_write(aggregate, path.c_str(), sample.data.data()), "write");
        has_file(path, sample.file);
        auto said = report(aggregate).at("declared");
        twr_aggregate_free(aggregate);
        return said;
    };
    const auto first = one(1000, 1);
    expect(first.at("plan") == "elected" && first.at("election_rounds") > 0, first.dump());
    for (const std::uint64_t salt : {2, 3}) {
        auto again = one(1000, salt);
        expect(again.at("plan") == "saved" && again.at("election_rounds") == 0, again.dump());
        expect(again.at("partitions") == first.at("partitions"), "other aggregators, or other costs");
    }
    // Another declaration, and another placement, are elected; the file keeps all.
    expect(one(1500, 1).at("plan") == "elected", "another declaration");
    options.placement = "worst";
    expect(one(1000, 1).at("plan") == "elected", "another placement");
    expect(one(1000, 1).at("plan") == "saved", "the same again");
    options.placement = nullptr;
    expect(one(1000, 4).at("plan") == "saved" && one(1500, 4).at("plan") == "saved", "the earlier ones");
    // Elections for one rank's file each.
    options.files = "rank";
    const auto of_files = [&] {
        twr_aggregate* const aggregate = made(options);
        const twr_aggregate_variable all = {1, 5000, 0, 0, 0};
        well(twr_aggregate_declare(aggregate, &all, 1), "declare");
        auto said = report(aggregate).at("declared");
        twr_aggregate_free(aggregate);
        return said;
    };
    expect(of_files().at("plan") == "elected", "elections of files");
    expect(of_files().at("plan") == "saved", "elections of files again");
    by_one([&] { expect(ranks == 1 || there(file + ".00000"), "the first file's elections"); });
    options.files = nullptr;
    // What is not twinrun's stays; a file that is cut, or of a newer version, is an error of all ranks.
    const Sample sample(1000);
    const auto refused = [&](int wanted, const std::vector<std::string>& words) {
        twr_aggregate* const aggregate = made(options);
        fails_on(0, sample.declare(aggregate), wanted, words);
        twr_aggregate_free(aggregate);
    };
    const auto with = [&](const std::string& words, int wanted, const std::vector<std::string>& said) {
        by_one([&] { put_contents(file, text(words)); });
        refused(wanted, said);
        by_one([&] { same_bytes(contents(file), text(words), "the file"); });
    };
    with("a note", TWR_ERROR_INVALID_ARGUMENT, {file, "left alone"});
    with("{}", TWR_ERROR_INVALID_ARGUMENT, {file, "left alone"});
    const std::string begin = "{\"format\": \"twinrun aggregation plans\", \"version\": ";
    with(begin + "2}", TWR_ERROR_UNSUPPORTED, {file, "newer"});
    for (const char* const end :
         {"1}", "1, \"plans\": [1]}", "1, \"plans\": [[1, [-1]]]}", "1, \"plans\": [[-1, []]]}"})
        with(begin + end, TWR_ERROR_DAMAGED, {file, "remove it"});
    by_one([&] { expect(::unlink(file.c_str()) == 0 && ::mkdir(file.c_str(), 0777) == 0, "folder"); });
    refused(TWR_ERROR_INVALID_ARGUMENT, {file, "no regular file"});
    by_one([&] { expect(::rmdir(file.c_str()) == 0, "folder"); });
    const std::string nowhere = folder + "/nowhere/plans.json";
    options.plan = nowhere.c_str();
    refused(TWR_ERROR_NOT_FOUND, {"nowhere"});
    // Ranks that name two files.
    const std::string other = folder + "/other";
    if (ranks > 1) {
        options.plan = me == 0 ? file.c_str() : other.c_str();
        twr_aggregate* aggregate = nullptr;
        expect(twr_aggregate_create(&aggregate, MPI_COMM_WORLD, &options) != TWR_OK, "two files of plans");
    }
}

}  // namespace aggregate_ranks
