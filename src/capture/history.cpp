#include "capture/history.hpp"

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/checked.hpp"
#include "base/checksum.hpp"

namespace twinrun {

namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr std::uint64_t kLargestManifest = 1ULL << 32;
constexpr const char* kManifest = "manifest.jsonl";
constexpr const char* kSumKey = ",\"xxh3\":\"";  // always the last key of a line

std::string manifest_path(const std::string& path) { return (fs::path(path) / kManifest).string(); }

std::string hex(std::uint64_t value) {
    char text[17];
    std::snprintf(text, sizeof text, "%016" PRIx64, value);
    return text;
}

Json settings_to_json(const HistorySettings& s) {
    return Json{{"twinrun_history", kHistoryVersion},
                {"atol", s.tolerance.atol},
                {"rtol", s.tolerance.rtol},
                {"residue_bits", s.residue_bits},
                {"chunk_bytes", s.chunk_bytes},
                {"digest", s.kind == DigestKind::linear ? "linear" : "published"},
                {"keep_data", s.keep_data}};
}

template <class T>
T whole_number(const Json& j, const char* key) {
    const Json& value = j.at(key);
    const bool fits = value.is_number_unsigned()
                          ? std::in_range<T>(value.get<std::uint64_t>())
                          : value.is_number_integer() && std::in_range<T>(value.get<std::int64_t>());
    if (!fits)
        throw Json::other_error::create(501, std::string(key) + " is not a number of its range", nullptr);
    return value.get<T>();
}

HistorySettings settings_from_json(const Json& j) {
    HistorySettings s;
    s.tolerance.atol = j.at("atol").get<double>();
    s.tolerance.rtol = j.at("rtol").get<double>();
    s.residue_bits = whole_number<unsigned>(j, "residue_bits");
    s.chunk_bytes = whole_number<std::uint32_t>(j, "chunk_bytes");
    s.kind = j.at("digest").get<std::string>() == "published" ? DigestKind::published : DigestKind::linear;
    s.keep_data = j.at("keep_data").get<bool>();
    return s;
}

// A name from a manifest becomes part of a path: it must not lead out of the history.
std::string plain_name(const Json& j, const char* key) {
    auto name = j.at(key).get<std::string>();
    if (name == "." || name == ".." || name.find('/') != std::string::npos ||
        name.find('\0') != std::string::npos) {
        throw Json::other_error::create(501, "a name that leads out of the history", nullptr);
    }
    return name;
}

Json step_to_json(const HistoryStep& step) {
    Json ranks = Json::array();
    for (const RankFiles& r : step.ranks) {
        ranks.push_back({{"rank", r.rank},
                         {"data", r.data},
                         {"data_bytes", r.data_bytes},
                         {"metadata", r.metadata},
                         {"metadata_bytes", r.metadata_bytes},
                         {"header_xxh3", hex(r.header_checksum)}});
    }
    return Json{{"step", step.step}, {"folder", step.folder}, {"ranks", ranks}};
}

HistoryStep step_from_json(const Json& j) {
    HistoryStep step;
    step.step = whole_number<std::int64_t>(j, "step");
    step.folder = plain_name(j, "folder");
    for (const Json& r : j.at("ranks")) {
        RankFiles files;
        files.rank = whole_number<std::uint32_t>(r, "rank");
        files.data = plain_name(r, "data");
        files.data_bytes = whole_number<std::uint64_t>(r, "data_bytes");
        files.metadata = plain_name(r, "metadata");
        files.metadata_bytes = whole_number<std::uint64_t>(r, "metadata_bytes");
        files.header_checksum = std::stoull(r.at("header_xxh3").get<std::string>(), nullptr, 16);
        step.ranks.push_back(std::move(files));
    }
    return step;
}

std::string step_folder(std::int64_t step) {
    char name[40];
    std::snprintf(name, sizeof name, "step-%010" PRId64, step);
    return name;
}

constexpr std::size_t kWriteBytes = 8 << 20;

// An array's items, without the gaps of a stride.
Result<> write_data(OutputFile& output, std::uint64_t offset, const CapturedField& field,
                    std::uint64_t items) {
    const std::size_t item = item_bytes(field.dtype);
    const auto* from = static_cast<const std::byte*>(field.data);
    const std::uint64_t stride = field.stride == 0 ? item : field.stride;
    const std::uint64_t per_write = kWriteBytes / item;
    std::vector<std::byte> packed;
    for (std::uint64_t at = 0; at < items; at += per_write) {
        const std::uint64_t count = std::min(per_write, items - at);
        std::span<const std::byte> bytes{from + at * stride, count * item};
        if (stride != item) {
            packed.resize(count * item);
            for (std::uint64_t k = 0; k < count; ++k) {
                std::memcpy(packed.data() + k * item, from + (at + k) * stride, item);
            }
            bytes = packed;
        }
        TWR_CHECK(output.write_at(offset + at * item, bytes));
    }
    return success();
}

// The same from a device, with the checksums of what came.
Result<> write_device_data(OutputFile& output, std::uint64_t offset, const DeviceArray& array,
                           std::vector<std::uint64_t>& sums) {
    static_assert(kWriteBytes % kDataSumBytes == 0);
    const std::size_t item = item_bytes(array.dtype);
    return copy_out(
        array, kWriteBytes, [&](std::uint64_t first, std::span<const std::byte> bytes) -> Result<> {
            for (std::size_t at = 0; at < bytes.size(); at += kDataSumBytes)
                sums.push_back(xxh3(bytes.subspan(at, std::min(kDataSumBytes, bytes.size() - at))));
            return output.write_at(offset + first * item, bytes);
        });
}

}  // namespace

Result<FieldMetadata> plan_captured(const CapturedField& field, const HistorySettings& settings) {
    FieldPlan plan;
    plan.name = field.name;
    plan.dtype = field.dtype;
    plan.byte_order = std::endian::native == std::endian::little ? ByteOrder::little : ByteOrder::big;
    plan.order = field.order;
    plan.shape = field.shape;
    plan.tolerance = field.own_tolerance ? field.tolerance : settings.tolerance;
    // Integers and booleans compare exactly unless they are given a tolerance of their own.
    if (!field.own_tolerance && !is_floating(field.dtype)) plan.tolerance = {};
    plan.residue_bits = settings.residue_bits;
    plan.chunk_bytes = settings.chunk_bytes;
    plan.kind = settings.kind;
    return plan_field(std::move(plan));
}

std::string seal_line(std::string json_object) {
    json_object.pop_back();  // the closing brace
    const std::uint64_t sum = xxh3(json_object);
    return json_object + kSumKey + hex(sum) + "\"}";
}

Result<std::string> open_line(const std::string& line) {
    const std::size_t at = line.rfind(kSumKey);
    if (at == std::string::npos ||
        line != line.substr(0, at) + kSumKey + hex(xxh3(line.substr(0, at))) + "\"}") {
        return Error{ErrorCode::damaged, "its checksum is wrong"};
    }
    return line.substr(0, at) + "}";
}

bool History::exists(const std::string& path) {
    std::error_code ignored;
    return fs::is_regular_file(manifest_path(path), ignored);
}

Result<History> History::open(const std::string& path) {
    if (!exists(path)) {
        return Error{ErrorCode::not_found, path + ": not a history: there is no manifest.jsonl in it"};
    }
    const std::string manifest = manifest_path(path);
    TWR_TRY(const auto bytes, read_whole_file(manifest, kLargestManifest));
    const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    History history;
    history.path = path;
    std::size_t number = 0;
    std::set<std::int64_t> seen;
    for (std::size_t begin = 0; begin < text.size();) {
        const std::size_t end = text.find('\n', begin);
        const std::string line = text.substr(begin, end == std::string::npos ? end : end - begin);
        ++number;
        const auto damaged = [&](const std::string& why) {
            return Error{ErrorCode::damaged,
                         manifest + ": damaged: line " + std::to_string(number) + ": " + why};
        };
        if (end == std::string::npos) {
            // A crash leaves a part of a line; a whole one with something else in place of its end is damage.
            if (open_line(line.substr(0, line.size() - 1))) return damaged("its end is missing");
            history.torn = true;
            --number;
            break;
        }
        begin = end + 1;
        auto object = open_line(line);
        if (!object) return damaged(object.error().message);
        try {
            const Json j = Json::parse(*object);
            if (number == 1) {
                const int version = whole_number<int>(j, "twinrun_history");
                if (version > kHistoryVersion) {
                    return Error{ErrorCode::unsupported,
                                 path + ": a history of version " + std::to_string(version) +
                                     ", this twinrun reads up to " + std::to_string(kHistoryVersion) +
                                     ": upgrade twinrun"};
                }
                history.settings = settings_from_json(j);
                continue;
            }
            HistoryStep step = step_from_json(j);
            if (!seen.insert(step.step).second) return damaged("a step that is listed twice");
            history.steps.push_back(std::move(step));
        } catch (const std::exception& e) {
            return damaged(e.what());
        }
    }
    if (number == 0) {
        return Error{ErrorCode::damaged, manifest + ": empty: the run ended before its manifest was written"};
    }
    std::sort(history.steps.begin(), history.steps.end(),
              [](const HistoryStep& x, const HistoryStep& y) { return x.step < y.step; });
    return history;
}

Result<> HistoryWriter::drop_torn_line() {
    if (!history_.torn) return success();
    const std::string manifest = manifest_path(history_.path);
    TWR_TRY(const auto bytes, read_whole_file(manifest, kLargestManifest));
    const std::string_view all(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    const std::size_t last = all.rfind('\n');
    TWR_CHECK(system_.truncate(manifest, last == std::string_view::npos ? 0 : last + 1));
    history_.torn = false;
    return success();
}

Result<> HistoryWriter::append_line(const std::string& json_object) {
    TWR_CHECK(drop_torn_line());
    const std::string line = seal_line(json_object) + "\n";
    std::uint64_t size = 0;
    TWR_TRY(auto file, system_.open_append(manifest_path(history_.path), size));
    const auto written = file->write_at(size, std::as_bytes(std::span(line)));
    Result<> result = written ? file->sync() : Result<>(written.error());
    if (result) result = file->close();
    // A line that is not surely on storage must not be seen: take it back, as far as the storage lets us.
    if (!result) static_cast<void>(system_.truncate(manifest_path(history_.path), size));
    return result;
}

Result<std::unique_ptr<HistoryWriter>> HistoryWriter::create(FileSystem& system, const std::string& path,
                                                             const HistorySettings& settings,
                                                             Existing existing) {
    TWR_CHECK(cell_rule(settings.tolerance, settings.residue_bits));
    std::unique_ptr<HistoryWriter> writer(new HistoryWriter(system));
    if (History::exists(path)) {
        if (existing == Existing::refuse) {
            return Error{
                ErrorCode::invalid_argument,
                path + ": holds a history already: choose another folder, or append to it, or replace it"};
        }
        // A crash before the first line was whole: nothing was ever committed, and nothing is lost.
        TWR_TRY(const auto bytes, read_whole_file(manifest_path(path), kLargestManifest));
        if (std::find(bytes.begin(), bytes.end(), std::byte{'\n'}) == bytes.end()) {
            TWR_CHECK(system.remove(manifest_path(path)));
        }
    }
    if (History::exists(path)) {
        if (existing == Existing::append) {
            TWR_TRY(writer->history_, History::open(path));
            const HistorySettings& had = writer->history_.settings;
            if (had.tolerance != settings.tolerance || had.residue_bits != settings.residue_bits ||
                had.chunk_bytes != settings.chunk_bytes || had.kind != settings.kind ||
                had.keep_data != settings.keep_data) {
                return Error{ErrorCode::mismatch,
                             path + ": was captured with other settings: append with the same"};
            }
            TWR_CHECK(writer->drop_torn_line());
            return writer;
        }
        TWR_TRY(const History old, History::open(path));
        TWR_CHECK(system.remove(manifest_path(path)));  // from here on the old steps do not exist
        for (const HistoryStep& step : old.steps) {
            TWR_CHECK(system.remove_folder((fs::path(path) / step.folder).string()));
        }
    }
    TWR_CHECK(system.make_folders(path));
    writer->history_.path = path;
    writer->history_.settings = settings;
    TWR_CHECK(writer->append_line(settings_to_json(settings).dump()));
    TWR_CHECK(system.sync_folder(path));
    return writer;
}

Result<CaptureFacts> HistoryWriter::capture(std::int64_t step, const std::vector<CapturedField>& fields,
                                            const StreamOptions& options) try {
    const auto start = std::chrono::steady_clock::now();
    const std::string& path = history_.path;
    const auto where = [&](Error error) {
        return std::move(error).at(path + ": step " + std::to_string(step));
    };
    for (const HistoryStep& s : history_.steps) {
        if (s.step == step) return where({ErrorCode::invalid_argument, "captured already"});
    }
    if (fields.empty()) return where({ErrorCode::invalid_argument, "no fields to capture"});
    std::set<std::string> names;
    for (const CapturedField& f : fields) {
        if (!names.insert(f.name).second) {
            return where({ErrorCode::invalid_argument, "two fields of the name '" + f.name + "'"});
        }
    }
    const HistorySettings& settings = history_.settings;
    const std::string final_folder = (fs::path(path) / step_folder(step)).string();
    const std::string folder = (fs::path(path) / ("." + step_folder(step) + ".tmp")).string();
    // Both can only be what an interrupted capture left: no line of the manifest names them.
    TWR_CHECK(system_.remove_folder(folder));
    TWR_CHECK(system_.remove_folder(final_folder));
    TWR_CHECK(system_.make_folders(folder));
    // Whatever goes wrong from here on leaves no folder behind.
    struct Cleanup {
        FileSystem& system;
        const std::string& folder;
        bool armed = true;
        ~Cleanup() {
            if (armed) static_cast<void>(system.remove_folder(folder));
        }
    } cleanup{system_, folder};

    RankFiles files;
    files.data = settings.keep_data ? "rank-00000.data" : "";
    files.metadata = "rank-00000.twm";
    Directory directory;
    directory.step = step;
    std::vector<std::unique_ptr<MemorySource>> sources;  // of each field; null: on a device
    // Fields on devices, whose digests are made together.
    std::vector<std::size_t> on_devices;
    std::vector<const DeviceArray*> arrays;
    std::vector<std::vector<std::uint64_t>> sums;  // of each of these, if their bytes come to the host
    std::uint64_t end = 0;
    for (const CapturedField& f : fields) {
        const std::size_t item = item_bytes(f.dtype);
        auto planned = plan_captured(f, settings);
        if (!planned) return where(std::move(planned).error());
        FieldMetadata& field = *planned;
        const std::uint64_t items = field.items();
        if (settings.keep_data && items != 0) field.extents.push_back({0, end, item, items});
        if (f.device) {
            auto checked = check_array(*f.device);
            if (checked && (f.device->dtype != f.dtype || f.device->items() != items)) {
                checked = Error{ErrorCode::mismatch, "the device array has another type or size"};
            }
            if (!checked) return where(std::move(checked).error().at("field '" + f.name + "'"));
            on_devices.push_back(directory.fields.size());
            arrays.push_back(&*f.device);
            sources.push_back(nullptr);
        } else {
            sources.push_back(std::make_unique<MemorySource>(f.dtype, items, f.data,
                                                             f.stride == 0 ? item : f.stride, false));
        }
        directory.fields.push_back(std::move(field));
        if (settings.keep_data) end = round_up(end + items * item, kPageBytes);
    }
    files.data_bytes = end;
    if (settings.keep_data) {
        const std::string data = (fs::path(folder) / files.data).string();
        TWR_TRY(auto output, system_.create(data, end));
        for (std::size_t i = 0; i < fields.size(); ++i) {
            const FieldMetadata& field = directory.fields[i];
            if (field.extents.empty()) {
                if (fields[i].device) sums.emplace_back();
                continue;
            }
            const std::size_t item = item_bytes(field.dtype);
            const std::uint64_t items = field.items();
            const std::uint64_t offset = field.extents.front().offset;
            if (fields[i].device) {
                TWR_CHECK(write_device_data(*output, offset, *fields[i].device, sums.emplace_back()));
            } else {
                TWR_CHECK(write_data(*output, offset, fields[i], items));
            }
            // The next field begins on a page, and the last one ends on one.
            const std::uint64_t used = offset + items * item;
            const std::vector<std::byte> padding(round_up(used, kPageBytes) - used);
            if (!padding.empty()) TWR_CHECK(output->write_at(used, padding));
        }
        TWR_CHECK(output->sync());
        TWR_CHECK(output->close());
        TWR_TRY(const FileStamp stamp, stamp_of(data));
        directory.data_files.push_back({files.data, stamp});
    }
    const std::string metadata = (fs::path(folder) / files.metadata).string();
    {
        TWR_TRY(auto writer, MetadataWriter::create(system_, metadata, std::move(directory)));
        for (std::size_t i = 0; i < fields.size(); ++i) {
            if (sources[i] != nullptr) TWR_CHECK(build_field(*writer, i, *sources[i], options));
        }
        if (!arrays.empty()) TWR_CHECK(build_device_fields(*writer, on_devices, arrays, sums));
        TWR_CHECK(writer->finish());
    }
    TWR_CHECK(system_.sync_folder(folder));
    {
        TWR_TRY(auto written, InputFile::open(metadata));
        std::vector<std::byte> header(kHeaderBytes);
        TWR_CHECK(written->read_at(0, header));
        files.metadata_bytes = written->size();
        files.header_checksum = xxh3(header);
    }
    TWR_CHECK(system_.rename(folder, final_folder));
    cleanup.armed = false;
    HistoryStep entry{step, step_folder(step), {files}};
    Result<> listed = system_.sync_folder(path);
    if (listed) listed = append_line(step_to_json(entry).dump());
    if (!listed) {
        // Storage may keep a part of the line, or all of it: go by what is there now. A step that the manifest names
        // keeps its folder, whole as it is; the next capture drops a torn line first.
        auto now = History::open(path);
        const bool readable = now.ok();
        if (readable) history_ = std::move(now).value();
        const bool named = std::any_of(history_.steps.begin(), history_.steps.end(),
                                       [&](const HistoryStep& s) { return s.step == step; });
        if (readable && !named) static_cast<void>(system_.remove_folder(final_folder));
        return where(std::move(listed).error());
    }
    history_.steps.push_back(std::move(entry));
    CaptureFacts facts;
    facts.data_bytes = files.data_bytes;
    facts.metadata_bytes = files.metadata_bytes;
    facts.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return facts;
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory,
                 history_.path + ": not enough memory to capture step " + std::to_string(step)};
}

}  // namespace twinrun
