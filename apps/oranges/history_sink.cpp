// SPDX-License-Identifier: Apache-2.0
#include "oranges/history_sink.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>
#include <vector>

#include "oranges/orbits.hpp"

namespace oranges {

namespace {

[[noreturn]] void fail(const twinrun::Error& error) { throw std::runtime_error(error.message); }

}  // namespace

HistorySink::HistorySink(const std::string& folder, std::uint64_t vertices, int threads,
                         std::span<const std::string> settings)
    : vertices_(vertices) {
    twinrun::SessionSettings session;
    session.history.tolerance.atol = 0;  // counts are exact
    session.threads = threads;
    session.provenance = twinrun::collect_provenance();
    for (const std::string& setting : settings) {
        const std::size_t equals = std::min(setting.find('='), setting.size());
        const auto done =
            session.set(setting.substr(0, equals), setting.substr(std::min(equals + 1, setting.size())));
        if (!done) fail(done.error());
    }
    auto opened = twinrun::Session::open(twinrun::posix_file_system(), comm_, folder, std::move(session));
    if (!opened) fail(opened.error());
    session_ = std::move(opened).value();
}

void HistorySink::capture(std::uint64_t step, std::span<const std::uint32_t> counts) {
    twinrun::CapturedField field;
    field.name = "gdv";
    field.dtype = twinrun::DType::u32;
    field.shape = {vertices_, kOrbits};
    field.data = counts.data();
    std::vector<twinrun::CapturedField> fields;
    fields.push_back(std::move(field));
    const auto report = session_->capture_fields(static_cast<std::int64_t>(step), std::move(fields));
    if (!report) fail(report.error());
    if (!report->lost.empty()) fail(report->lost.front().error);
    if (report->divergence)
        throw std::runtime_error("step " + std::to_string(step) +
                                 " differs from the reference: " + twinrun::describe(*report->divergence));
}

void HistorySink::finish() {
    const auto lost = session_->close();
    if (!lost) fail(lost.error());
    if (!lost->empty()) fail(lost->front().error);
}

}  // namespace oranges
