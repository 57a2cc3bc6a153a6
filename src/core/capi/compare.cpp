#include "twinrun/compare.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/sized.hpp"
#include "base/utf8.hpp"
#include "capi/array.hpp"
#include "capi/handles.hpp"
#include "capi/status.hpp"
#include "comparison/compare_runs.hpp"
#include "comparison/document.hpp"

using namespace twinrun;
using namespace twinrun::capi;

struct twr_comparison {
    RunsResult result;
    std::string verdict;
    std::string json;  // of twr_comparison_json
};

namespace {

constexpr std::uint64_t kDefaultMemory = 1ULL << 30;
// Where an index of no numbers points to, which must not be NULL.
constexpr std::uint64_t kNoNumbers = 0;

// ---- options ----

Error bad(std::string message) { return Error{ErrorCode::invalid_argument, std::move(message)}; }

Result<std::optional<double>> tolerance_of(const char* name, double value) {
    if (value == TWR_AS_CAPTURED) return std::optional<double>();
    if (std::isfinite(value) && value >= 0) return std::optional<double>(value);
    return bad(std::string("options: ") + name +
               " must be a finite number that is not negative, or TWR_AS_CAPTURED");
}

Result<DeviceChoice> device_of(int device) {
    DeviceChoice choice;
    if (device == TWR_HOST) {
        choice.use = DeviceUse::cpu;
    } else if (device >= 0) {
        choice.use = DeviceUse::gpu;
        choice.devices = {device};
    } else if (device != TWR_DETECT) {
        return bad("options: device " + std::to_string(device) +
                   " is neither a device's number nor TWR_HOST or TWR_DETECT");
    }
    return choice;
}

Result<RunsOptions> options_of(const twr_compare_options* given_options) {
    constexpr twr_compare_options defaults = TWR_COMPARE_OPTIONS_INIT;
    twr_compare_options known = defaults;
    if (given_options != nullptr) {
        TWR_TRY(known, known_part(given_options, defaults, offsetof(twr_compare_options, device),
                                  "twr_compare_options"));
    }
    RunsOptions options;
    TWR_TRY(options.atol, tolerance_of("atol", known.atol));
    TWR_TRY(options.rtol, tolerance_of("rtol", known.rtol));
    if (known.ulps < TWR_AS_CAPTURED)
        return bad("options: ulps must be a number of representable values, or TWR_AS_CAPTURED");
    if (known.ulps >= 0) options.ulps = static_cast<std::uint64_t>(known.ulps);
    const auto truth = [](const char* name, int value) -> Result<bool> {
        if (value == 0 || value == 1) return value == 1;
        return bad(std::string("options: ") + name + " is " + std::to_string(value) + ": give 0 or 1");
    };
    TWR_TRY(const bool nan_differs, truth("nan_differs", known.nan_differs));
    options.equal_nan = !nan_differs;
    TWR_TRY(options.tolerate_integers, truth("tolerate_integers", known.tolerate_integers));
    TWR_TRY(options.common, truth("common", known.common));
    if (known.method != TWR_METHOD_AUTO && known.method != TWR_METHOD_DIRECT)
        return bad("options: method " + std::to_string(known.method) + " is not a twr_method");
    options.method = known.method == TWR_METHOD_DIRECT ? Method::direct : Method::automatic;
    TWR_TRY(options.device, device_of(known.device));
    constexpr int kMostThreads = 4096;
    if (known.threads < 0 || known.threads > kMostThreads) {
        return bad("options: threads is " + std::to_string(known.threads) + ": give 0 (all cores) to " +
                   std::to_string(kMostThreads));
    }
    options.stream.threads = known.threads;
    if (known.memory_bytes >= 1ULL << 62) return bad("options: memory_bytes is not a number of bytes");
    options.stream.memory_bytes = known.memory_bytes == 0 ? kDefaultMemory : known.memory_bytes;
    return options;
}

// ---- runs ----

Result<std::unique_ptr<ComparedRun>> history_at(const char* path, const char* name) {
    TWR_CHECK(given(path, name));
    if (*path == '\0') return bad(std::string(name) + " is empty: name the folder of a history");
    auto opened = HistoryRun::open(path);
    if (!opened) {
        Error error = std::move(opened).error();
        if (error.code == ErrorCode::not_found) error.message += "; name the folder of a captured history";
        return error;
    }
    std::unique_ptr<ComparedRun> run = std::move(opened).value();
    return run;
}

Result<std::unique_ptr<ComparedRun>> arrays_at(const twr_array* arrays, std::size_t count, const char* name) {
    if (count == 0) return bad(std::string(name) + "_count is 0: give an array to compare");
    TWR_CHECK(given(arrays, name));
    std::vector<CapturedField> fields;
    const std::size_t size = arrays->size;
    const auto* bytes = reinterpret_cast<const unsigned char*>(arrays);
    for (std::size_t i = 0; i < count; ++i) {
        // The caller's own size parts one array from the next. captured_field() checks that of the
        // first one.
        const auto* array = reinterpret_cast<const twr_array*>(bytes + i * size);
        const auto at = [&](Error error) {
            return std::move(error).at(std::string(name) + "[" + std::to_string(i) + "]");
        };
        if (array->size != size) return at(bad("twr_array.size is not that of the first array"));
        auto field = captured_field(array);
        if (!field) return at(std::move(field).error());
        if (!is_utf8(field->name)) {
            return at(bad("the name '" + readable(field->name) + "' is not UTF-8"));
        }
        fields.push_back(std::move(field).value());
    }
    TWR_TRY(std::unique_ptr<ComparedRun> run,
            ArraysRun::create(std::move(fields), std::string("arrays ") + name));
    return run;
}

// ---- what was found ----

Result<std::unique_ptr<twr_comparison>> compared(ComparedRun& a, ComparedRun& b, const RunsOptions& options) {
    TWR_TRY(RunsResult result, compare_runs(a, b, options));
    auto comparison = std::make_unique<twr_comparison>();
    comparison->result = std::move(result);
    comparison->verdict = verdict_line(comparison->result);
    return comparison;
}

twr_status status_of(const twr_comparison& comparison) {
    switch (comparison.result.verdict) {
        case Verdict::same: return TWR_OK;
        case Verdict::different: return TWR_DIFFERENT;
        case Verdict::incomparable: break;
    }
    return TWR_INCOMPARABLE;
}

// Sets the thread's message to what the status means.
twr_status finish(const char* function, std::unique_ptr<twr_comparison> comparison, twr_comparison** result) {
    const twr_status status = status_of(*comparison);
    if (status != TWR_OK) set_message(std::string(function) + ": " + comparison->verdict);
    *result = comparison.release();
    return status;
}

twr_value value_of(const std::optional<ElementValue>& element) {
    twr_value value{};
    if (!element) return value;
    if (is_floating(element->scalar)) {
        value.dtype = TWR_F64;
        value.of.real = element->real;
    } else if (element->scalar == DType::u64) {
        value.dtype = TWR_U64;
        value.of.whole = element->unsigned_integer;
    } else {
        value.dtype = TWR_I64;
        value.of.integer = element->integer;
    }
    return value;
}

const std::uint64_t* numbers(const std::vector<std::uint64_t>& values) {
    return values.empty() ? &kNoNumbers : values.data();
}

const std::uint64_t* index_at(bool there, const std::vector<std::uint64_t>& index) {
    return there ? numbers(index) : nullptr;
}

twr_field_report report_of(const FieldFacts& f) {
    constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
    twr_field_report report{};
    report.step = f.step.value_or(TWR_NO_STEP);
    report.rank = static_cast<int>(f.rank);
    report.dtype = static_cast<int>(f.dtype);
    report.field = f.name.c_str();
    report.dimensions = static_cast<int>(f.shape.size());
    report.index_length = report.dimensions + (is_complex(f.dtype) ? 1 : 0);
    report.shape = numbers(f.shape);
    report.atol = f.decision.tolerance.atol;
    report.rtol = f.decision.tolerance.rtol;
    report.ulps = f.decision.ulps ? static_cast<std::int64_t>(*f.decision.ulps) : TWR_AS_CAPTURED;
    report.elements = f.elements;
    report.bytes = f.bytes;
    report.different = f.different;
    report.infinite = f.infinite;
    report.first_index = index_at(f.first_a.has_value(), f.first_index);
    report.first_a = value_of(f.first_a);
    report.first_b = value_of(f.first_b);
    report.first_abs_diff = f.first_whole_diff ? static_cast<double>(*f.first_whole_diff)
                                               : f.first_abs_diff.value_or(f.first_a ? kUnknown : 0);
    report.max_abs_diff = f.max_abs_diff.value_or(kUnknown);
    report.max_abs_diff_is_bound = f.max_abs_diff_is_bound ? 1 : 0;
    report.rms_diff_all_is_bound = f.rms_diff_all_is_bound ? 1 : 0;
    report.max_abs_diff_at_least = f.max_abs_diff_at_least;
    report.max_abs_index = index_at(f.max_abs_a.has_value(), f.max_abs_index);
    report.max_abs_a = value_of(f.max_abs_a);
    report.max_abs_b = value_of(f.max_abs_b);
    report.max_rel_diff = f.max_rel_diff;
    report.max_rel_index = index_at(f.has_max_rel_index, f.max_rel_index);
    report.rms_diff = f.rms_diff;
    report.rms_diff_all = f.rms_diff_all.value_or(kUnknown);
    report.elements_read = f.elements_read;
    report.method = method_name(f.method);
    report.reason = f.reason.c_str();
    report.kind = f.kind ? f.kind->c_str() : nullptr;
    report.different_is_exact = f.different_is_exact ? 1 : 0;
    report.first_chunk_begin = index_at(!f.different_is_exact, f.chunk_begin);
    report.first_chunk_end = index_at(!f.different_is_exact, f.chunk_end);
    return report;
}

// As much of it as the caller knows.
template <class T>
void hand_out(T filled, T* report) {
    const std::size_t size = report->size;
    filled.size = size;
    std::memset(report, 0, size);
    std::memcpy(report, &filled, std::min(size, sizeof filled));
}

const char* text_at(const std::vector<std::string>& texts, std::uint64_t number) {
    return number < texts.size() ? texts[number].c_str() : nullptr;
}

}  // namespace

extern "C" {

int twr_compare(const char* a, const char* b, const twr_compare_options* options, twr_comparison** result) {
    return answer("twr_compare", [&]() -> Result<twr_status> {
        TWR_CHECK(given(result, "result"));
        *result = nullptr;
        TWR_TRY(const RunsOptions asked, options_of(options));
        TWR_TRY(const auto run_a, history_at(a, "a"));
        TWR_TRY(const auto run_b, history_at(b, "b"));
        TWR_TRY(auto found, compared(*run_a, *run_b, asked));
        return finish("twr_compare", std::move(found), result);
    });
}

int twr_compare_arrays(const twr_array* a, size_t a_count, const twr_array* b, size_t b_count,
                       const twr_compare_options* options, twr_comparison** result) {
    return answer("twr_compare_arrays", [&]() -> Result<twr_status> {
        TWR_CHECK(given(result, "result"));
        *result = nullptr;
        TWR_TRY(const RunsOptions asked, options_of(options));
        TWR_TRY(const auto run_a, arrays_at(a, a_count, "a"));
        TWR_TRY(const auto run_b, arrays_at(b, b_count, "b"));
        TWR_TRY(auto found, compared(*run_a, *run_b, asked));
        return finish("twr_compare_arrays", std::move(found), result);
    });
}

int twr_compare_step(twr_run* run, const char* reference, const twr_compare_options* options,
                     twr_comparison** result) {
    return answer("twr_compare_step", [&]() -> Result<twr_status> {
        TWR_CHECK(given(result, "result"));
        *result = nullptr;
        TWR_CHECK(given(run, "run"));
        TWR_TRY(const RunsOptions asked, options_of(options));
        if (!run->last) return Error{ErrorCode::not_found, "nothing has been captured yet"};
        const std::string path = reference != nullptr ? reference : run->session->reference();
        if (path.empty())
            return bad("there is no reference: name a history, or set `reference` before the run is opened");
        const std::int64_t step = run->last->step;
        const auto rank = static_cast<std::uint32_t>(run->session->rank());
        TWR_TRY(const auto before, HistoryRun::open(path));
        if (before->ranks() != static_cast<std::uint32_t>(run->session->ranks())) {
            return Error{ErrorCode::mismatch, path + ": captured by " + std::to_string(before->ranks()) +
                                                  " ranks, this run has " +
                                                  std::to_string(run->session->ranks())};
        }
        before->select(step, rank);
        if (before->places().empty()) {
            return Error{ErrorCode::not_found, path + ": step " + std::to_string(step) + " of rank " +
                                                   std::to_string(rank) + " is not there"};
        }
        std::unique_ptr<twr_comparison> found;
        TWR_CHECK(run->session->read_committed(step, [&](const StoredPart& part) -> Result<> {
            const auto own = HistoryRun::of_step(part.path, step, part.journal.steps.at(step));
            TWR_TRY(found, compared(*before, *own, asked));
            return success();
        }));
        return finish("twr_compare_step", std::move(found), result);
    });
}

void twr_comparison_destroy(twr_comparison* comparison) { delete comparison; }

int twr_comparison_facts(const twr_comparison* comparison, twr_comparison_report* report) {
    return answer("twr_comparison_facts", [&]() -> Result<twr_status> {
        TWR_CHECK(given(comparison, "comparison"));
        TWR_CHECK(given(report, "report"));
        TWR_CHECK(check_size(report->size, sizeof(twr_comparison_report),
                             offsetof(twr_comparison_report, problems), "twr_comparison_report"));
        const RunsResult& found = comparison->result;
        twr_comparison_report filled{};
        filled.verdict = status_of(*comparison);
        filled.fields = found.fields.size();
        filled.different_fields = found.different_fields;
        filled.first_field = found.first ? *found.first : TWR_NONE;
        filled.different = found.different;
        filled.problems = found.problems.size();
        filled.notes = found.notes.size();
        filled.bytes_compared = found.bytes_compared;
        filled.bytes_read = found.bytes_read;
        filled.seconds = found.seconds;
        hand_out(filled, report);
        return TWR_OK;
    });
}

int twr_comparison_field(const twr_comparison* comparison, uint64_t number, twr_field_report* report) {
    return answer("twr_comparison_field", [&]() -> Result<twr_status> {
        TWR_CHECK(given(comparison, "comparison"));
        TWR_CHECK(given(report, "report"));
        TWR_CHECK(check_size(report->size, sizeof(twr_field_report), offsetof(twr_field_report, first_a),
                             "twr_field_report"));
        const auto& fields = comparison->result.fields;
        if (number >= fields.size()) {
            return Error{ErrorCode::not_found,
                         "there is no such entry, of " + std::to_string(fields.size()) + " entries"};
        }
        hand_out(report_of(fields[number]), report);
        return TWR_OK;
    });
}

const char* twr_comparison_problem(const twr_comparison* comparison, uint64_t number) {
    return comparison == nullptr ? nullptr : text_at(comparison->result.problems, number);
}

const char* twr_comparison_note(const twr_comparison* comparison, uint64_t number) {
    return comparison == nullptr ? nullptr : text_at(comparison->result.notes, number);
}

const char* twr_comparison_verdict(const twr_comparison* comparison) {
    return comparison == nullptr ? "" : comparison->verdict.c_str();
}

const char* twr_comparison_json(twr_comparison* comparison) {
    if (comparison == nullptr) return nullptr;
    const auto made = caught([&]() -> Result<> {
        if (comparison->json.empty()) comparison->json = document(comparison->result, TWINRUN_VERSION);
        return success();
    });
    return made ? comparison->json.c_str() : nullptr;
}

}  // extern "C"
