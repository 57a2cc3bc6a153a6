#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string_view>

#include "base/sized.hpp"
#include "capi/array.hpp"
#include "capi/comm.hpp"
#include "capi/handles.hpp"
#include "capi/status.hpp"
#include "history/secrets.hpp"

using namespace twinrun;
using namespace twinrun::capi;

namespace {

// ---- open ----

// The file that TWINRUN_SETTINGS names replaces settings of the application: a reference or a
// tolerance changes without a compiler.
Result<SessionSettings> complete(const twr_settings* given_settings) {
    SessionSettings settings;
    if (given_settings != nullptr) settings = given_settings->values;
    if (const char* path = std::getenv("TWINRUN_SETTINGS"); path != nullptr && *path != '\0') {
        auto loaded = settings.load(path);
        if (!loaded) return std::move(loaded).error().at("TWINRUN_SETTINGS");
    }
    if (settings.provenance.empty()) settings.provenance = collect_provenance();
    return settings;
}

// Whether a path is a URL, which would become a folder of that name. "./az:/x" is none.
bool is_url(std::string_view path) {
    constexpr std::array<std::string_view, 13> kStores{"http", "https", "s3",    "s3a", "gs",   "gcs",   "az",
                                                       "abfs", "abfss", "wasbs", "ftp", "hdfs", "memory"};
    const std::size_t colon = path.find(":/");
    if (colon == std::string_view::npos || colon == 0 || path.find('/') < colon) return false;
    if (path.substr(colon, 3) == "://") return true;
    return std::find(kStores.begin(), kStores.end(), path.substr(0, colon)) != kStores.end();
}

Result<> no_url(const std::string& path) {
    if (!is_url(path)) return success();
    return Error{ErrorCode::unsupported,
                 without_secrets(path) +
                     ": a URL, and this interface writes into folders; capture into a folder, "
                     "and bring it into a bucket by: twinrun flush FOLDER --to s3://…"};
}

// Called from any thread. Exceptions of the application are dropped: the caller may be a thread of
// ours.
void call_back(twr_run& run, const Divergence& d) {
    const twr_divergence shown{sizeof(twr_divergence), d.step,   d.rank,          d.field.c_str(),
                               d.first_item,           d.chunks, d.chunks_in_all, d.reason.c_str()};
    const std::lock_guard guard(run.mutex);
    if (run.callback == nullptr) return;
    try {
        run.callback(&shown, run.context);
    } catch (...) {
    }
}

// comm: checked. Every rank calls this, also one that cannot go on: otherwise the others would wait
// for it.
Result<std::unique_ptr<twr_run>> open(const char* path, const twr_settings* given_settings,
                                      std::unique_ptr<Comm> comm, Result<> arguments) {
    std::unique_ptr<twr_run> run(new (std::nothrow) twr_run);
    auto settings = caught([&]() -> Result<SessionSettings> {
        TWR_CHECK(arguments);
        if (run == nullptr) throw std::bad_alloc();
        TWR_CHECK(no_url(path));
        TWR_TRY(SessionSettings whole, complete(given_settings));
        TWR_CHECK(no_url(whole.local));
        return whole;
    });
    std::int64_t all_well = settings.ok() ? 1 : 0;
    TWR_CHECK(comm->minimum({&all_well, 1}));
    if (!settings) return std::move(settings).error();
    if (all_well == 0) {
        return Error{ErrorCode::other_rank,
                     "another rank cannot begin, and its message says why: no rank began"};
    }
    run->stop_on_divergence = settings->stop_on_divergence;
    run->comm = std::move(comm);
    TWR_TRY(run->session, Session::open(posix_file_system(), *run->comm, path, std::move(settings).value()));
    run->session->on_divergence([owner = run.get()](const Divergence& d) { call_back(*owner, d); });
    return run;
}

Result<> check_open(twr_run** run, const char* path) {
    TWR_CHECK(given(run, "run"));
    return given(path, "path");
}

// ---- capture ----

// TWR_STEP_LOST and its message, once for every lost step.
twr_status report_lost(const char* function, twr_run& run) {
    if (run.unreported.empty()) return TWR_OK;
    constexpr std::size_t kMostNamed = 8;
    std::string text = function;
    text += run.unreported.size() == 1 ? ": step " : ": steps ";
    for (std::size_t i = 0; i < run.unreported.size() && i < kMostNamed; ++i) {
        text += (i == 0 ? "" : ", ") + std::to_string(run.unreported[i].step);
    }
    if (run.unreported.size() > kMostNamed)
        text += " and " + std::to_string(run.unreported.size() - kMostNamed) + " more";
    text += (run.unreported.size() == 1 ? " is lost: " : " are lost; the first: ") +
            run.unreported.front().error.message;
    set_message(text);
    run.unreported.clear();
    return TWR_STEP_LOST;
}

void keep(twr_run& run, const std::vector<LostStep>& lost) {
    run.unreported.insert(run.unreported.end(), lost.begin(), lost.end());
}

Result<twr_status> capture(const char* function, twr_run& run, std::int64_t step,
                           std::span<const std::string> names) {
    TWR_TRY(CaptureReport report, run.session->capture(step, names));
    keep(run, report.lost);
    run.last = std::move(report);
    if (run.last->divergence && run.stop_on_divergence) {
        set_message(std::string(function) + ": step " + std::to_string(step) +
                    " differs from the reference: " + describe(*run.last->divergence));
        return TWR_DIVERGED;  // the next call reports lost steps
    }
    return report_lost(function, run);
}

// For a run that has captured.
twr_report report_of(const twr_run& run) {
    twr_report report{};
    report.size = sizeof report;
    report.step = run.last->step;
    report.seconds = run.last->seconds;
    report.waited_seconds = run.last->waited_seconds;
    report.data_bytes = run.last->data_bytes;
    report.staged_bytes = run.last->staged_bytes;
    report.diverged = run.last->divergence ? 1 : 0;
    const SessionFacts facts = run.session->facts();
    report.pending_steps = facts.captured - std::min(facts.captured, facts.committed + facts.lost);
    return report;
}

std::string json_of(const twr_report& report) {
    const auto seconds = [](double value) {  // whatever the application's locale
        char text[32];
        return std::string(text, std::to_chars(text, text + sizeof text, value).ptr);
    };
    return "{\"step\": " + std::to_string(report.step) + ", \"seconds\": " + seconds(report.seconds) +
           ", \"waited_seconds\": " + seconds(report.waited_seconds) +
           ", \"data_bytes\": " + std::to_string(report.data_bytes) +
           ", \"staged_bytes\": " + std::to_string(report.staged_bytes) +
           ", \"diverged\": " + (report.diverged != 0 ? "true" : "false") +
           ", \"pending_steps\": " + std::to_string(report.pending_steps) + "}";
}

Result<std::vector<std::string>> named(const char* const* names, std::size_t count, const char* instead) {
    TWR_CHECK(given(names, "names"));
    if (count == 0) {
        return Error{ErrorCode::invalid_argument,
                     std::string("count is 0: ") + instead + " takes all protected arrays"};
    }
    std::vector<std::string> all;
    for (std::size_t i = 0; i < count; ++i) {
        if (names[i] == nullptr) {
            return Error{ErrorCode::invalid_argument, "names[" + std::to_string(i) + "] is NULL"};
        }
        all.emplace_back(names[i]);
    }
    return all;
}

// The arguments are released whatever goes wrong, except those in a structure of a wrong size: its
// members cannot be known.
int open_comm(const char* function, twr_run** run, const char* path, const twr_settings* settings,
              const twr_comm* comm, const twr_shared_files* shared) {
    return answer(function, [&]() -> Result<twr_status> {
        if (run != nullptr) *run = nullptr;
        const auto known = caught([&]() -> Result<twr_shared_files> {
            constexpr std::size_t kLeast = offsetof(twr_shared_files, release) + sizeof shared->release;
            if (shared == nullptr) return twr_shared_files{};
            return known_part(shared, twr_shared_files{}, kLeast, "twr_shared_files");
        });
        const twr_comm ranks = comm != nullptr ? *comm : twr_comm{};
        const twr_shared_files files = known ? *known : twr_shared_files{};
        std::unique_ptr<ApplicationComm> owned(new (std::nothrow) ApplicationComm(ranks, files));
        if (owned == nullptr) {
            ApplicationComm released(ranks, files);
            throw std::bad_alloc();
        }
        TWR_CHECK(given(comm, "comm"));
        if (!known) return known.error();
        TWR_CHECK(owned->check());
        TWR_TRY(auto opened, open(path, settings, std::move(owned), check_open(run, path)));
        *run = opened.release();
        return TWR_OK;
    });
}

}  // namespace

extern "C" {

int twr_open(twr_run** run, const char* path, const twr_settings* settings) {
    return answer("twr_open", [&]() -> Result<twr_status> {
        if (run != nullptr) *run = nullptr;
        TWR_TRY(auto opened, open(path, settings, std::make_unique<SelfComm>(), check_open(run, path)));
        *run = opened.release();
        return TWR_OK;
    });
}

int twr_open_comm(twr_run** run, const char* path, const twr_settings* settings, const twr_comm* comm) {
    return open_comm("twr_open_comm", run, path, settings, comm, nullptr);
}

int twr_open_comm_shared(twr_run** run, const char* path, const twr_settings* settings, const twr_comm* comm,
                         const twr_shared_files* shared) {
    return open_comm("twr_open_comm_shared", run, path, settings, comm, shared);
}

int twr_close(twr_run* run) {
    return answer("twr_close", [&]() -> Result<twr_status> {
        if (run == nullptr) return TWR_OK;
        const std::unique_ptr<twr_run> ended(run);
        TWR_TRY(const std::vector<LostStep> lost, run->session->close());
        keep(*run, lost);
        return report_lost("twr_close", *run);
    });
}

int twr_protect(twr_run* run, const char* name, void* data, int dtype, int dimensions,
                const uint64_t* shape) {
    return answer("twr_protect", [&]() -> Result<twr_status> {
        TWR_CHECK(given(run, "run"));
        twr_array array = TWR_ARRAY_INIT;
        array.name = name;
        array.data = data;
        array.dtype = dtype;
        array.dimensions = dimensions;
        array.shape = shape;
        TWR_TRY(CapturedField field, captured_field(&array));
        TWR_CHECK(run->session->protect(std::move(field)));
        return TWR_OK;
    });
}

int twr_protect_array(twr_run* run, const twr_array* array) {
    return answer("twr_protect_array", [&]() -> Result<twr_status> {
        TWR_CHECK(given(run, "run"));
        TWR_TRY(CapturedField field, captured_field(array));
        TWR_CHECK(run->session->protect(std::move(field)));
        return TWR_OK;
    });
}

int twr_unprotect(twr_run* run, const char* name) {
    return answer("twr_unprotect", [&]() -> Result<twr_status> {
        TWR_CHECK(given(run, "run"));
        TWR_CHECK(given(name, "name"));
        TWR_CHECK(run->session->unprotect(name));
        return TWR_OK;
    });
}

int twr_capture(twr_run* run, int64_t step) {
    return answer("twr_capture", [&]() -> Result<twr_status> {
        TWR_CHECK(given(run, "run"));
        return capture("twr_capture", *run, step, {});
    });
}

int twr_capture_some(twr_run* run, int64_t step, const char* const* names, size_t count) {
    return answer("twr_capture_some", [&]() -> Result<twr_status> {
        TWR_CHECK(given(run, "run"));
        TWR_TRY(const auto chosen, named(names, count, "twr_capture"));
        return capture("twr_capture_some", *run, step, chosen);
    });
}

int twr_wait(twr_run* run) {
    return answer("twr_wait", [&]() -> Result<twr_status> {
        TWR_CHECK(given(run, "run"));
        TWR_TRY(const std::vector<LostStep> lost, run->session->wait());
        keep(*run, lost);
        return report_lost("twr_wait", *run);
    });
}

int twr_last_report(const twr_run* run, twr_report* report) {
    return answer("twr_last_report", [&]() -> Result<twr_status> {
        TWR_CHECK(given(run, "run"));
        TWR_CHECK(given(report, "report"));
        const std::size_t size = report->size;
        TWR_CHECK(check_size(size, sizeof(twr_report), offsetof(twr_report, seconds), "twr_report"));
        if (!run->last) return Error{ErrorCode::not_found, "nothing has been captured yet"};
        twr_report filled = report_of(*run);
        filled.size = size;
        std::memset(report, 0, size);
        std::memcpy(report, &filled, std::min(size, sizeof filled));
        return TWR_OK;
    });
}

const char* twr_report_json(twr_run* run) {
    if (run == nullptr || !run->last) return "{}";
    const auto made = caught([&]() -> Result<> {
        run->report = json_of(report_of(*run));
        return success();
    });
    return made ? run->report.c_str() : "{}";
}

int twr_latest(twr_run* run, int64_t not_after, int64_t* step) {
    return answer("twr_latest", [&]() -> Result<twr_status> {
        TWR_CHECK(given(run, "run"));
        TWR_CHECK(given(step, "step"));
        TWR_TRY(const auto latest, run->session->latest(not_after));
        if (!latest) {
            return Error{
                ErrorCode::not_found,
                run->session->path() + ": every rank has completed no step" +
                    (not_after == INT64_MAX ? std::string() : " up to " + std::to_string(not_after))};
        }
        *step = *latest;
        return TWR_OK;
    });
}

int twr_stored_bytes(twr_run* run, int64_t step, const char* name, uint64_t* bytes) {
    return answer("twr_stored_bytes", [&]() -> Result<twr_status> {
        TWR_CHECK(given(run, "run"));
        TWR_CHECK(given(name, "name"));
        TWR_CHECK(given(bytes, "bytes"));
        TWR_TRY(const auto stored, run->session->stored(step));
        const auto number = stored->find(name);
        if (!number) {
            return Error{ErrorCode::not_found, run->session->path() + ": step " + std::to_string(step) +
                                                   ": no field of the name '" + name + "'"};
        }
        *bytes = stored->directory().fields[*number].data_bytes();
        return TWR_OK;
    });
}

int twr_stored_names(twr_run* run, int64_t step, twr_name_callback callback, void* context) {
    return answer("twr_stored_names", [&]() -> Result<twr_status> {
        TWR_CHECK(given(run, "run"));
        TWR_CHECK(given(reinterpret_cast<const void*>(callback), "callback"));
        TWR_TRY(const auto stored, run->session->stored(step));
        for (const FieldMetadata& field : stored->directory().fields)
            callback(context, field.name.c_str());
        return TWR_OK;
    });
}

int twr_local_steps(twr_run* run, uint64_t* steps) {
    return answer("twr_local_steps", [&]() -> Result<twr_status> {
        TWR_CHECK(given(run, "run"));
        TWR_CHECK(given(steps, "steps"));
        *steps = run->session->local_only().size();
        return TWR_OK;
    });
}

int twr_drop_local(twr_run* run) {
    return answer("twr_drop_local", [&]() -> Result<twr_status> {
        TWR_CHECK(given(run, "run"));
        TWR_CHECK(run->session->drop_local());
        return TWR_OK;
    });
}

int twr_restore(twr_run* run, int64_t step) {
    return answer("twr_restore", [&]() -> Result<twr_status> {
        TWR_CHECK(given(run, "run"));
        TWR_CHECK(run->session->restore(step));
        return TWR_OK;
    });
}

int twr_restore_some(twr_run* run, int64_t step, const char* const* names, size_t count) {
    return answer("twr_restore_some", [&]() -> Result<twr_status> {
        TWR_CHECK(given(run, "run"));
        TWR_TRY(const auto chosen, named(names, count, "twr_restore"));
        TWR_CHECK(run->session->restore(step, chosen));
        return TWR_OK;
    });
}

int twr_on_divergence(twr_run* run, twr_divergence_callback callback, void* context) {
    return answer("twr_on_divergence", [&]() -> Result<twr_status> {
        TWR_CHECK(given(run, "run"));
        const std::lock_guard guard(run->mutex);
        run->callback = callback;
        run->context = context;
        return TWR_OK;
    });
}

}  // extern "C"
