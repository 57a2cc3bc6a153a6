// SPDX-License-Identifier: Apache-2.0
#include "minihacc/history_sink.hpp"

#include <stdexcept>
#include <utility>
#include <vector>

namespace minihacc {

namespace {

[[noreturn]] void fail(const twinrun::Error& error) { throw std::runtime_error(error.message); }

}  // namespace

HistorySink::HistorySink(const std::string& folder, double atol, int threads,
                         std::span<const std::string> settings) {
    twinrun::SessionSettings session;
    session.history.tolerance.atol = atol;
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

void HistorySink::capture(std::uint64_t step, std::span<const Field> fields) {
    std::vector<twinrun::CapturedField> captured;
    for (const Field& field : fields) {
        twinrun::CapturedField f;
        f.name = field.name;
        f.dtype = twinrun::DType::f32;
        f.shape = {field.values.size()};
        f.data = field.values.data();
        captured.push_back(std::move(f));
    }
    const auto report = session_->capture_fields(static_cast<std::int64_t>(step), std::move(captured));
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

}  // namespace minihacc
