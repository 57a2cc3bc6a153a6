// SPDX-License-Identifier: Apache-2.0
#include "minihacc/history_sink.hpp"

#include <stdexcept>
#include <utility>
#include <vector>

namespace minihacc {

HistorySink::HistorySink(const std::string& folder, double atol, int threads) {
    twinrun::HistorySettings settings;
    settings.tolerance.atol = atol;
    auto writer = twinrun::HistoryWriter::create(twinrun::posix_file_system(), folder, settings);
    if (!writer) throw std::runtime_error(writer.error().message);
    writer_ = std::move(writer).value();
    options_.threads = threads;
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
    const auto done = writer_->capture(static_cast<std::int64_t>(step), captured, options_);
    if (!done) throw std::runtime_error(done.error().message);
}

}  // namespace minihacc
