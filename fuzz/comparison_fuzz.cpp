// Comparisons of hostile runs: no crash, a report that is JSON, and never `same` where something
// was not compared or differs.
//
// The first byte chooses. Even: arrays in memory of both runs, whose elements are compared one by
// one here too. Odd: the bytes of a metadata file, which becomes a history whose checksums are
// right, compared with itself and with a copy of which one byte differs.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/checksum.hpp"
#include "comparison/compare_runs.hpp"
#include "comparison/document.hpp"
#include "folder.hpp"
#include "history/journal_line.hpp"
#include "input.hpp"

using namespace twinrun;

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLargestFile = 1 << 16;

RunsOptions options_of(std::uint8_t bits) {
    RunsOptions options;
    options.device.use = DeviceUse::cpu;
    options.stream.threads = 1;
    options.common = (bits & 1) != 0;
    options.equal_nan = (bits & 2) == 0;
    options.tolerate_integers = (bits & 4) != 0;
    if ((bits & 8) != 0) options.method = Method::direct;
    if ((bits & 16) != 0) options.ulps = 3;
    if ((bits & 32) != 0) options.atol = 0.5;
    return options;
}

void check_result(const RunsResult& result) {
    const auto json = nlohmann::json::parse(document(result, "0"), nullptr, false);
    fuzz::require(!json.is_discarded());
    fuzz::require(json.at("verdict") == verdict_name(result.verdict));
    fuzz::require(json.at("fields").size() == result.fields.size());
    const std::string line = verdict_line(result);
    fuzz::require(line.starts_with(verdict_name(result.verdict)) && line.find('\n') == std::string::npos);
    fuzz::require((result.verdict == Verdict::incomparable) == !result.problems.empty());
    const bool differs = std::any_of(result.fields.begin(), result.fields.end(),
                                     [](const FieldFacts& f) { return !f.same(); });
    fuzz::require(differs == result.first.has_value());
    fuzz::require(result.verdict != Verdict::same || !differs);
    for (const FieldFacts& f : result.fields) {
        fuzz::require(f.same() != (f.first_a.has_value() || !f.different_is_exact));
        fuzz::require(f.elements == f.elements_read + f.proven_by_tree + [&] {
            std::uint64_t all = 0;
            for (const std::uint64_t n : f.proven_by_cells)
                all += n;
            return all;
        }());
    }
}

// ---- arrays ----

struct Memory {
    std::vector<std::vector<std::byte>> data;
    std::vector<CapturedField> fields;
};

Memory arrays_of(fuzz::Input& input) {
    constexpr std::array<const char*, 6> kNames = {"x", "y", "x@mask", "a\"b\n", "t@unit.s", "t"};
    constexpr std::array<DType, 6> kTypes = {DType::f64, DType::f32, DType::i8,
                                             DType::u64, DType::c64, DType::boolean};
    Memory memory;
    const unsigned count = 1 + input.take<std::uint8_t>() % 3;
    for (unsigned i = 0; i < count; ++i) {
        CapturedField field;
        field.name = kNames[input.take<std::uint8_t>() % kNames.size()];
        field.dtype = kTypes[input.take<std::uint8_t>() % kTypes.size()];
        const unsigned dimensions = input.take<std::uint8_t>() % 4;
        std::uint64_t items = 1;
        for (unsigned d = 0; d < dimensions; ++d) {
            field.shape.push_back(input.take<std::uint8_t>() % 4);
            items *= field.shape.back();
        }
        const auto how = input.take<std::uint8_t>();
        if ((how & 1) != 0) field.order = ArrayOrder::column_major;
        if ((how & 2) != 0) {
            field.own_tolerance = true;
            field.tolerance = {input.take<double>(), (how & 4) != 0 ? input.take<double>() : 0};
        }
        if ((how & 8) != 0) {
            field.global_shape = field.global_offset = field.shape;
            for (auto& n : field.global_shape)
                n += input.take<std::uint8_t>() % 3;
            for (auto& n : field.global_offset)
                n = input.take<std::uint8_t>() % 2;
        }
        memory.data.push_back(input.take_bytes(items * item_bytes(field.dtype)));
        if (field.dtype == DType::boolean) {
            for (std::byte& b : memory.data.back())
                b &= std::byte{1};
        }
        field.data = memory.data.back().data();
        memory.fields.push_back(std::move(field));
    }
    return memory;
}

void compare_arrays(fuzz::Input& input) {
    const RunsOptions options = options_of(input.take<std::uint8_t>());
    const Memory of_a = arrays_of(input);
    const Memory of_b = arrays_of(input);
    auto a = ArraysRun::create(of_a.fields, "a");
    auto b = ArraysRun::create(of_b.fields, "b");
    if (!a.ok() || !b.ok()) return;
    const auto result = compare_runs(**a, **b, options);
    if (!result.ok()) return;
    check_result(*result);
    if (result->verdict != Verdict::same) return;
    // Without a tolerance the same means: every field, with equal values.
    for (const CapturedField& x : of_a.fields) {
        const auto y = std::find_if(of_b.fields.begin(), of_b.fields.end(),
                                    [&](const CapturedField& other) { return other.name == x.name; });
        if (y == of_b.fields.end()) {
            fuzz::require(options.common);
            continue;
        }
        fuzz::require(y->dtype == x.dtype && y->shape == x.shape);
        const bool exact = x.dtype == DType::u64 && !options.tolerate_integers && x.order == y->order;
        if (!exact) continue;
        std::size_t items = 1;
        for (const std::uint64_t n : x.shape)
            items *= n;
        fuzz::require(items == 0 || std::memcmp(x.data, y->data, items * 8) == 0);
    }
}

// ---- histories ----

const std::string& folder() {
    static const fuzz::Folder made("comparison");
    return made.name();
}

std::string hex(std::uint64_t number) {
    char text[17];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(number));
    return text;
}

// A history of one step with this metadata; its data is zeros. false: the metadata has no
// directory.
bool write_history(const std::string& path, std::span<const std::byte> bytes, bool with_data) {
    if (bytes.size() < kHeaderBytes || bytes.size() > kLargestFile) return false;
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data() + 24, 8);
    length = std::min<std::uint64_t>(length, bytes.size() - kHeaderBytes);
    std::optional<Directory> directory;
    for (const std::uint32_t version : {2U, 1U}) {
        auto decoded = decode_directory(bytes.subspan(kHeaderBytes, length), bytes.size(), version);
        if (decoded.ok()) directory = std::move(decoded).value();
    }
    if (!directory) return false;
    for (DataFile& file : directory->data_files) {
        file.path = "data";
        file.stamp.size = kLargestFile;
        file.stamp.mtime_ns = 0;
    }
    std::vector<std::byte> whole = encode_directory(*directory, bytes.size());
    whole.insert(whole.end(),
                 bytes.begin() + static_cast<std::ptrdiff_t>(std::min(whole.size(), bytes.size())),
                 bytes.end());
    const fs::path step = fs::path(path) / "step-0000000001";
    fs::create_directories(step);
    const auto put = [](const fs::path& file, const std::string& text) {
        std::ofstream(file, std::ios::binary | std::ios::trunc) << text;
    };
    put(step / "data", std::string(kLargestFile, '\0'));
    put(step / "m.twm", {reinterpret_cast<const char*>(whole.data()), whole.size()});
    const std::string header =
        R"({"twinrun_history":1,"atol":0.001,"rtol":0.0,"residue_bits":4,"chunk_bytes":4096,"digest":"linear","keep_data":true,"ranks":1})";
    const std::string files =
        std::string(R"({"step":1,"folder":"step-0000000001","ranks":[{"rank":0,"data":")") +
        (with_data ? "data" : "") + R"(","data_bytes":)" + std::to_string(with_data ? kLargestFile : 0) +
        R"(,"metadata":"m.twm","metadata_bytes":)" + std::to_string(whole.size()) + R"(,"header_xxh3":")" +
        hex(xxh3(std::span(whole).first(kHeaderBytes))) + R"(","blocked_seconds":0.5}]})";
    put(fs::path(path) / "manifest.jsonl", seal_line(header) + "\n" + seal_line(files) + "\n");
    return true;
}

void compare_histories(fuzz::Input& input) {
    const RunsOptions options = options_of(input.take<std::uint8_t>());
    const bool with_data = input.take<std::uint8_t>() % 2 == 0;
    const auto where = input.take<std::uint16_t>();
    const auto change = input.take<std::uint8_t>();
    std::vector<std::byte> bytes = input.take_bytes(input.left());
    const std::string path_a = folder() + "/a";
    const std::string path_b = folder() + "/b";
    if (!write_history(path_a, bytes, with_data)) return;
    if (!bytes.empty()) bytes[where % bytes.size()] ^= static_cast<std::byte>(change);
    if (!write_history(path_b, bytes, with_data)) return;
    auto a = HistoryRun::open(path_a);
    auto b = HistoryRun::open(path_b);
    fuzz::require(a.ok() && b.ok());
    for (ComparedRun* other : {static_cast<ComparedRun*>(b->get()), static_cast<ComparedRun*>(a->get())}) {
        const auto result = compare_runs(**a, *other, options);
        if (result.ok()) {
            check_result(*result);
        } else {
            fuzz::require(!result.error().message.empty());
        }
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    fuzz::Input input(data, size);
    if (input.take<std::uint8_t>() % 2 == 0) {
        compare_arrays(input);
    } else {
        compare_histories(input);
    }
    return 0;
}
