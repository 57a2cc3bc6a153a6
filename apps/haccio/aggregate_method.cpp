// SPDX-License-Identifier: Apache-2.0
// Through twinrun_aggregate.
#include <array>
#include <cstdlib>

#include "haccio/method.hpp"
#include "twinrun/aggregate.h"

namespace haccio {

namespace {

void check(int status) {
    if (status != TWR_OK) throw Failure(twr_error_message());
}

class AggregateMethod : public Method {
   public:
    AggregateMethod(const MethodChoice& choice, const Options& options, Particles& particles, MPI_Comm world)
        : choice_(choice), layout_(options.layout), particles_(particles) {
        twr_aggregate_options settings = TWR_AGGREGATE_OPTIONS_INIT;
        settings.files = words("files");
        settings.nodes_per_file = static_cast<int>(whole("nodes-per-file"));
        settings.aggregators = static_cast<int>(whole("aggregators"));
        settings.placement = words("placement");
        settings.topology = words("topology");
        settings.backend = words("backend");
        settings.buffers = static_cast<int>(whole("buffers"));
        settings.buffer_bytes = whole("buffer-bytes");
        settings.block_bytes = whole("block-bytes");
        settings.time_limit = words("time-limit") ? std::strtod(words("time-limit"), nullptr) : 0;
        settings.seed = whole("placement-seed");
        settings.sync = options.sync == Sync::method ? 1 : 0;
        check(twr_aggregate_create(&aggregate_, world, &settings));
    }
    ~AggregateMethod() override { twr_aggregate_free(aggregate_); }

    void declare() override {
        std::array<std::uint64_t, kVariables> bytes;
        for (std::size_t v = 0; v < kVariables; ++v)
            bytes[v] = kVariable[v].bytes;
        check(twr_aggregate_declare_records(aggregate_, bytes.data(), kVariables, particles_.count(),
                                            static_cast<int>(layout_), 0));
    }

    void write(const std::string& path, Stopwatch& watch) override {
        std::array<const void*, kVariables> data;
        for (std::size_t v = 0; v < kVariables; ++v)
            data[v] = particles_.data(v);
        check(twr_aggregate_write(aggregate_, path.c_str(), data.data()));
        watch.lap("write");
    }
    void read(const std::string& path, Stopwatch& watch) override {
        std::array<void*, kVariables> data;
        for (std::size_t v = 0; v < kVariables; ++v)
            data[v] = particles_.data(v);
        check(twr_aggregate_read(aggregate_, path.c_str(), data.data()));
        watch.lap("read");
    }

    [[nodiscard]] FileGroup group() const override {
        FileGroup group;
        check(twr_aggregate_file(aggregate_, &group.file, &group.files, &group.rank, &group.ranks,
                                 &group.comm));
        return group;
    }
    [[nodiscard]] bool prefix_path() const override { return true; }
    [[nodiscard]] std::string details() override {
        const char* report = twr_aggregate_report(aggregate_);
        return report ? report : "";
    }

   private:
    // Settings outlive the aggregate, and so do their words.
    [[nodiscard]] const char* words(const char* name) const {
        for (auto it = choice_.settings.rbegin(); it != choice_.settings.rend(); ++it) {
            if (it->first == name) return it->second.c_str();
        }
        return nullptr;
    }
    [[nodiscard]] std::uint64_t whole(const char* name) const {
        const char* text = words(name);
        return text ? std::strtoull(text, nullptr, 10) : 0;
    }

    MethodChoice choice_;
    Layout layout_;
    Particles& particles_;
    twr_aggregate* aggregate_ = nullptr;
};

static_assert(static_cast<int>(Layout::records) == TWR_RECORDS &&
              static_cast<int>(Layout::blocks) == TWR_BLOCKS &&
              static_cast<int>(Layout::variables) == TWR_VARIABLES);

}  // namespace

std::unique_ptr<Method> make_aggregate(const MethodChoice& choice, const Options& options,
                                       Particles& particles, MPI_Comm world) {
    return std::make_unique<AggregateMethod>(choice, options, particles, world);
}

}  // namespace haccio
