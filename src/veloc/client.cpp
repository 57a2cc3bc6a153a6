#include "veloc/client.hpp"

#include <fcntl.h>
#include <twinrun/veloc/veloc.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <climits>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string_view>
#include <system_error>
#include <utility>

namespace twinrun::veloc {

namespace {

namespace fs = std::filesystem;

constexpr const char* kConditionElsewhere =
    "another rank reports a condition of a checkpoint: see its message";

// The field of a routed file.
constexpr const char* kFileField = "file";

RegionRule file_rule() { return RegionRule{TWR_U8, 1, 0, 0, kFileField}; }

// FNV-1a
std::int64_t hash(const std::string& text) {
    std::uint64_t value = 0xcbf29ce484222325;
    for (const char c : text)
        value = (value ^ static_cast<unsigned char>(c)) * 0x100000001b3;
    return static_cast<std::int64_t>(value);
}

struct SettingsDeleter {
    void operator()(twr_settings* settings) const { twr_settings_destroy(settings); }
};
using Settings = std::unique_ptr<twr_settings, SettingsDeleter>;

}  // namespace

Client::Client(Config config, MPI_Comm comm, unsigned id) : config_(std::move(config)), comm_(comm), id_(id) {
    if (collective()) {
        int rank = 0;
        MPI_Comm_rank(comm_, &rank);
        id_ = static_cast<unsigned>(rank);
    }
}

Client::~Client() {
    if (copier_.joinable()) copier_.join();
}

void Client::make_folders() {
    for (std::string* folder : {&config_.scratch, &config_.persistent, &config_.reference, &config_.log}) {
        // The application may change its working folder between checkpoints.
        if (!folder->empty()) *folder = fs::absolute(*folder).lexically_normal().string();
    }
    for (const std::string& folder : {config_.scratch, config_.persistent}) {
        std::error_code failure;
        if (!folder.empty()) fs::create_directories(folder, failure);
        if (failure) fail(folder + ": cannot be made: " + failure.message());
    }
}

void Client::agree(const std::optional<std::string>& problem, const std::string& name, std::int64_t version,
                   const char* elsewhere) {
    // Logged before the agreement, after which other ranks may end the job.
    if (problem) note(*problem);
    const std::int64_t sum = hash(name);
    std::int64_t values[] = {problem ? 0 : 1, sum, ~sum, version, ~version};
    if (collective()) {
        int over = 0;
        MPI_Finalized(&over);
        if (over != 0) fail("MPI is finalised already: call VELOC functions before MPI_Finalize");
        if (MPI_Allreduce(MPI_IN_PLACE, values, 5, MPI_INT64_T, MPI_MIN, comm_) != MPI_SUCCESS)
            fail("MPI_Allreduce failed: another rank may be gone");
    }
    if (problem) throw Failure{*problem, false};
    if (values[0] == 0) fail(elsewhere);
    if (values[1] != ~values[2] || values[3] != ~values[4])
        fail("the ranks do not name the same checkpoint: call with the same name and version on all");
}

void Client::protect(int id, void* data, std::size_t count, std::size_t base, const char* group) {
    const std::string name = group_name(group);
    Region region{data, 0, config_.rule(name, id)};
    const std::string which = "region " + std::to_string(id);
    if (__builtin_mul_overflow(count, base, &region.bytes) || region.bytes > PTRDIFF_MAX)
        fail(which + ": count * base_size is more than memory has");
    if (data == nullptr && region.bytes != 0) fail(which + ": the pointer is null");
    if (region.bytes % region.rule.item_bytes != 0) {
        fail(which + ": its " + std::to_string(region.bytes) + " bytes are no whole number of items of " +
             std::to_string(region.rule.item_bytes) + ": correct twinrun_type_" + std::to_string(id));
    }
    groups_[name].insert_or_assign(id, std::move(region));
}

void Client::unprotect(int id, const char* group) {
    const std::string name = group_name(group);
    const auto regions = groups_.find(name);
    if (regions == groups_.end() || regions->second.erase(id) == 0)
        fail("region " + std::to_string(id) + " is not protected");
}

void Client::begin_checkpoint(const char* name, int version) {
    if (phase_ == Phase::checkpoint) fail("a checkpoint is begun already: end it first");
    check_name(name, version);
    start(Phase::checkpoint, name, version);
}

void Client::copy(int mode, const int* ids, int count) {
    if (phase_ != Phase::checkpoint) fail("no checkpoint is begun");
    const std::vector<int> selected = select(mode, ids, count);
    const Regions& all = regions();
    if (!config_.copy_regions) {
        direct_.insert(selected.begin(), selected.end());
        return;
    }
    for (const int id : selected) {
        const Region& region = all.at(id);
        Copy& kept = copies_[id];
        kept.bytes.resize(region.bytes);
        if (region.bytes != 0) std::memcpy(kept.bytes.data(), region.data, region.bytes);
        kept.taken = true;
    }
}

void Client::end_checkpoint(bool success) {
    std::optional<std::string> problem;
    if (phase_ != Phase::checkpoint) problem = "no checkpoint is begun";
    if (!problem && !success) problem = "the checkpoint was ended with success = 0: nothing was kept";
    commit(problem);
}

void Client::checkpoint(const char* name, int version) {
    // An error here does not end the checkpoint.
    if (phase_ == Phase::checkpoint) agree("a checkpoint is begun already: end it first");
    const auto problem = caught([&] {
        begin_checkpoint(name, version);
        const std::vector<int> selected = select(VELOC_CKPT_ALL, nullptr, 0);
        direct_.insert(selected.begin(), selected.end());
    });
    commit(problem);
}

void Client::wait() {
    std::optional<std::string> problem;
    if (phase_ == Phase::checkpoint) problem = "a checkpoint is begun: end it first";
    agree(problem);
    for (auto& [name, run] : runs_) {
        if (!run.pending) continue;
        const int status = twr_wait(run.handle);
        run.pending = false;
        if (status != TWR_OK && !problem) problem = twr_error_message();
    }
    const std::string copied = copier_result();
    if (!problem && !copied.empty()) problem = copied;
    agree(problem, "", 0, kConditionElsewhere);
}

bool Client::finished() {
    if (phase_ == Phase::checkpoint) fail("a checkpoint is begun: end it first");
    for (const auto& [name, run] : runs_) {
        twr_report report = {};
        report.size = sizeof report;
        if (twr_last_report(run.handle, &report) == TWR_OK && report.pending_steps != 0) return false;
    }
    return !copying_;
}

int Client::newest(const char* name, int not_after) {
    const auto problem = caught([&] {
        check_name(name, not_after);
        if (config_.digests_only) fail("twinrun_mode is digests: there is no data to restart from");
    });
    agree(problem, problem ? "" : name, problem ? 0 : not_after);
    if (!anywhere(name)) throw Failure{std::string(name) + ": there are no checkpoints of this name", false};
    Run& run = opened(name);
    settle(run);
    std::int64_t step = 0;
    const int status = twr_latest(run.handle, not_after == 0 ? INT_MAX : not_after, &step);
    if (status == TWR_ERROR_NOT_FOUND) throw Failure{twr_error_message(), false};
    require(status);
    return static_cast<int>(step);
}

void Client::begin_restart(const char* name, int version) {
    const auto problem = caught([&] {
        if (phase_ == Phase::checkpoint) fail("a checkpoint is begun: end it first");
        check_name(name, version);
        if (config_.digests_only) fail("twinrun_mode is digests: there is no data to restart from");
    });
    agree(problem, problem ? "" : name, problem ? 0 : version);
    if (!anywhere(name)) fail(std::string(name) + ": there are no checkpoints of this name");
    Run& run = opened(name);
    settle(run);
    std::int64_t step = -1;
    const int status = twr_latest(run.handle, version, &step);
    if (status != TWR_OK && status != TWR_ERROR_NOT_FOUND) require(status);
    if (status != TWR_OK || step != version) {
        fail(std::string(name) + ": version " + std::to_string(version) +
             " is not there, or not on every rank: VELOC_Restart_test returns the newest one that is");
    }
    start(Phase::restart, name, version);
}

int Client::saved_bytes(int id) {
    std::uint64_t bytes = 0;
    // The size may be asked before the region is protected, when its name is not known yet.
    twr_run* run = restarting();
    const std::string own = config_.rule(name_, id).field;
    const std::string common = config_.rule(kDefaultGroup, id).field;
    int status = twr_stored_bytes(run, version_, own.c_str(), &bytes);
    if (status == TWR_ERROR_NOT_FOUND && own != common)
        status = twr_stored_bytes(run, version_, common.c_str(), &bytes);
    require(status);
    if (bytes > INT_MAX) {
        fail("region " + std::to_string(id) + " has " + std::to_string(bytes) +
             " bytes, more than this function can return");
    }
    return static_cast<int>(bytes);
}

void Client::recover(int mode, const int* ids, int count) {
    twr_run* run = restarting();
    const bool all_named = mode == VELOC_RECOVER_SOME;
    std::vector<const char*> names;
    const std::vector<int> selected = select(mode, ids, count);
    Regions& all = regions();
    if (!all_named) check_protected(run, mode, ids, count, selected);
    for (const int id : selected) {
        const Region& region = all.at(id);
        const std::string which = "region " + std::to_string(id);
        std::uint64_t bytes = 0;
        const int status = twr_stored_bytes(run, version_, region.rule.field.c_str(), &bytes);
        // As in VELOC, regions that are protected now and were not saved keep their values, unless
        // their ids are named.
        if (status == TWR_ERROR_NOT_FOUND && !all_named) continue;
        require(status);
        if (bytes > region.bytes) {
            fail(which + " has room for " + std::to_string(region.bytes) + " bytes, and " +
                 std::to_string(bytes) + " were saved");
        }
        if (bytes % region.rule.item_bytes != 0)
            fail(which + ": what was saved is of another type: see twinrun_type_" + std::to_string(id));
        offer(run, region, region.data, bytes);
        names.push_back(region.rule.field.c_str());
    }
    if (names.empty()) fail("no protected region was saved in this checkpoint");
    require(twr_restore_some(run, version_, names.data(), names.size()));
}

// As in VELOC, every saved region must be restored: without a protected region its data would be
// lost silently. selected: protected regions to restore. Saved regions outside `ids` need no
// protected region.
void Client::check_protected(twr_run* run, int mode, const int* ids, int count,
                             const std::vector<int>& selected) {
    std::set<std::string> known{kFileField};  // restored through VELOC_Route_file
    for (const int id : selected)
        known.insert(regions().at(id).rule.field);
    for (int i = 0; mode == VELOC_RECOVER_REST && i < count; ++i) {
        known.insert(config_.rule(name_, ids[i]).field);
        known.insert(config_.rule(kDefaultGroup, ids[i]).field);
    }
    std::vector<std::string> saved;
    const auto take = [](void* names, const char* name) {
        static_cast<std::vector<std::string>*>(names)->emplace_back(name);
    };
    require(twr_stored_names(run, version_, take, &saved));
    for (const std::string& name : saved) {
        if (!known.contains(name)) {
            fail("the saved region " + name +
                 " has no protected region to go to: protect it, or recover the others by their ids");
        }
    }
}

void Client::end_restart(bool success) {
    std::optional<std::string> problem;
    if (phase_ != Phase::restart) problem = "no restart is begun";
    if (!problem && !success) problem = "the restart was ended with success = 0";
    const std::string name = name_;
    const int version = version_;
    finish();
    agree(problem, problem ? "" : name, problem ? 0 : version);
}

void Client::restart(const char* name, int version) {
    begin_restart(name, version);
    const auto problem = caught([&] { recover(VELOC_RECOVER_ALL, nullptr, 0); });
    finish();
    agree(problem);
}

void Client::route(const char* original, char* routed) {
    if (routed == nullptr) fail("the second argument is null");
    routed[0] = '\0';
    if (original == nullptr || original[0] == '\0') fail("the file has no name");
    if (phase_ == Phase::none) fail("neither a checkpoint nor a restart is begun");
    const std::string path = routed_path(name_, version_);
    // The same version again, before its copy ended.
    if (copier_.joinable() && copied_ == path) copier_.join();
    if (path.size() >= VELOC_MAX_NAME) fail(path + ": longer than VELOC_MAX_NAME: choose a shorter scratch");
    if (phase_ == Phase::restart) {
        std::uint64_t bytes = 0;
        twr_run* run = restarting();
        require(twr_stored_bytes(run, version_, kFileField, &bytes));
        const auto content = std::make_unique_for_overwrite<std::byte[]>(bytes);
        const Region region{content.get(), bytes, file_rule()};
        offer(run, region, region.data, bytes);
        const char* names[] = {kFileField};
        require(twr_restore_some(run, version_, names, 1));
        write_file(path, content.get(), bytes, false);
    }
    original_ = fs::absolute(original).string();
    routed_ = path;
    path.copy(routed, path.size());
    routed[path.size()] = '\0';
}

void Client::clean(const char* name) {
    const auto problem = caught([&] { check_name(name, 0); });
    agree(problem, problem ? "" : name);
    if (copier_.joinable()) copier_.join();
    // Routed files that never became a checkpoint: their complete names are made by this library.
    std::error_code failure;
    std::vector<fs::path> found;
    for (fs::directory_iterator at(config_.scratch, failure), end; !failure && at != end;
         at.increment(failure)) {
        std::error_code gone;
        const std::string path = config_.scratch + "/" + at->path().filename().string();
        const auto version = routed_version(name, at->path().filename().string());
        if (version && path != routed_ && path == routed_path(name, *version) &&
            at->symlink_status(gone).type() == fs::file_type::regular)
            found.push_back(path);
    }
    for (std::size_t i = 0; !failure && i < found.size(); ++i)
        fs::remove(found[i], failure);
    agree(failure ? std::optional(config_.scratch + ": cannot be cleaned: " + failure.message())
                  : std::nullopt);
    // Steps leave scratch once they are on persistent storage. Opening a history first moves the
    // steps that a killed process left behind.
    if (local(name).empty() || config_.keeps_local || !anywhere(name)) return;
    if (phase_ == Phase::restart && name_ == name) finish();
    Run& run = opened(name);
    const int waited = twr_wait(run.handle);
    std::string lost = waited == TWR_OK ? "" : twr_error_message();
    std::uint64_t only_here = 0;
    require(twr_local_steps(run.handle, &only_here));
    if (lost.empty() && only_here != 0) {
        lost = local(name) + ": has " + std::to_string(only_here) +
               " checkpoints that are nowhere else: bring them on with 'twinrun flush'";
    }
    agree(lost.empty() ? std::nullopt : std::optional(lost), "", 0, kConditionElsewhere);
    twr_run* handle = run.handle;
    const auto dropped = caught([&] { require(twr_drop_local(handle)); });
    runs_.erase(name);
    require(twr_close(handle));
    agree(dropped);
    // The last rank of a node finds the folder without the parts of all ranks. What is left belongs
    // to others, or to checkpoints that these ranks do not have.
    ::rmdir(local(name).c_str());
}

void Client::close() {
    std::optional<std::string> problem;
    if (phase_ == Phase::checkpoint) problem = "a checkpoint was begun and not ended: it is lost";
    finish();
    for (auto& [name, run] : runs_) {
        if (twr_close(run.handle) != TWR_OK && !problem) problem = twr_error_message();
    }
    runs_.clear();
    const std::string copied = copier_result();
    if (!problem && !copied.empty()) problem = copied;
    agree(problem, "", 0, kConditionElsewhere);
}

void Client::note_unknown_keys(const std::string& file) {
    for (const std::string& key : config_.unknown)
        note(file + ": the key " + key + " is unknown, and ignored");
}

void Client::note(const std::string& line) const {
    if (config_.log.empty()) return;
    const File file(::open(config_.log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
    if (file.get() < 0) return;
    const std::string whole = "rank " + std::to_string(id_) + ": " + function_ + ": " + line + "\n";
    [[maybe_unused]] const ssize_t written = ::write(file.get(), whole.data(), whole.size());
}

std::string Client::group_name(const char* group) {
    if (group == nullptr) fail("the name of the region is null");
    return group;
}

void Client::check_name(const char* name, int version) {
    if (name == nullptr || !valid_name(name)) {
        fail("the name of a checkpoint has 1 to 127 letters, digits, _ and . only" +
             (name == nullptr ? ", and this one is null" : std::string()));
    }
    if (version < 0) fail(std::string(name) + ": the version is negative");
}

std::string Client::group() const {
    const auto own = groups_.find(name_);
    return own != groups_.end() && !own->second.empty() ? name_ : kDefaultGroup;
}

std::vector<int> Client::select(int mode, const int* ids, int count) {
    if (mode != VELOC_CKPT_ALL && mode != VELOC_CKPT_SOME && mode != VELOC_CKPT_REST)
        fail("the mode is " + std::to_string(mode) + ", none of VELOC's");
    std::set<int> named;
    if (mode != VELOC_CKPT_ALL) {
        if (count < 0 || (count > 0 && ids == nullptr))
            fail("the list of ids is null, or its length is negative");
        named.insert(ids, ids + count);
    }
    const Regions& all = regions();
    if (mode == VELOC_CKPT_SOME) {
        for (const int id : named) {
            if (!all.contains(id)) fail("region " + std::to_string(id) + " is not protected");
        }
    }
    std::vector<int> selected;
    for (const auto& [id, region] : all) {
        if (mode == VELOC_CKPT_ALL || named.contains(id) == (mode == VELOC_CKPT_SOME)) selected.push_back(id);
    }
    if (selected.empty()) fail("no region is selected: protect some before");
    return selected;
}

void Client::start(Phase phase, const std::string& name, int version) {
    finish();
    phase_ = phase;
    name_ = name;
    version_ = version;
}

void Client::finish() {
    if (phase_ == Phase::restart && !routed_.empty()) ::unlink(routed_.c_str());
    phase_ = Phase::none;
    routed_.clear();
    original_.clear();
    direct_.clear();
    for (auto& [id, copy] : copies_)
        copy.taken = false;
}

twr_run* Client::restarting() {
    if (phase_ != Phase::restart) fail("no restart is begun");
    return runs_.at(name_).handle;
}

void Client::offer(twr_run* run, const Region& region, void* data, std::uint64_t bytes) {
    const std::uint64_t shape[] = {bytes / region.rule.item_bytes};
    twr_array array = TWR_ARRAY_INIT;
    array.name = region.rule.field.c_str();
    array.data = data;
    array.dtype = region.rule.dtype;
    array.dimensions = 1;
    array.shape = shape;
    if (region.rule.atol >= 0) {
        array.atol = region.rule.atol;
        array.rtol = region.rule.rtol;
    }
    require(twr_protect_array(run, &array));
}

void Client::commit(std::optional<std::string> problem) {
    const std::string name = problem ? "" : name_;
    const int version = problem ? 0 : version_;
    std::optional<Mapping> file;
    std::vector<const char*> fields;
    try {
        if (!problem) {
            problem = caught([&] {
                if (!routed_.empty()) file.emplace(routed_);
                if (!file && direct_.empty() && !any_copy())
                    fail("nothing was saved since VELOC_Checkpoint_begin");
            });
        }
        agree(problem, name, version);
        Run& run = opened(name_);
        problem = caught([&] {
            const Regions& all = regions();
            std::set<std::string> seen;
            const auto add = [&](const Region& region, void* data, std::uint64_t bytes) {
                if (!seen.insert(region.rule.field).second)
                    fail("two regions are named " + region.rule.field);
                offer(run.handle, region, data, bytes);
            };
            for (const auto& [id, region] : all) {
                if (direct_.contains(id)) {
                    add(region, region.data, region.bytes);
                } else if (const auto copy = copies_.find(id); copy != copies_.end() && copy->second.taken) {
                    add(region, copy->second.bytes.data(), copy->second.bytes.size());
                } else {
                    continue;
                }
                fields.push_back(region.rule.field.c_str());
            }
            if (file) {
                add(Region{file->data(), file->bytes(), file_rule()}, file->data(), file->bytes());
                fields.push_back(kFileField);
            }
        });
        agree(problem);
        run.pending = true;
        const int status = twr_capture_some(run.handle, version_, fields.data(), fields.size());
        if (status != TWR_OK) problem = twr_error_message();
        if (file && (status == TWR_OK || status >= TWR_DIVERGED)) copy_out();
    } catch (...) {
        finish();
        throw;
    }
    finish();
    if (config_.sync) {
        const std::string copied = copier_result();
        if (!problem && !copied.empty()) problem = copied;
    }
    // A step that a rank lost, or that differs from the reference, is reported on all ranks, so
    // that the application reacts on all.
    agree(problem, "", 0, kConditionElsewhere);
}

bool Client::any_copy() const {
    return std::any_of(copies_.begin(), copies_.end(), [](const auto& copy) { return copy.second.taken; });
}

void Client::copy_out() {
    const std::string before = copier_result();
    copied_ = routed_;
    copying_ = true;
    copier_ = std::thread([this, from = routed_, to = original_, before] {
        const auto problem = caught([&] {
            const Mapping content(from);
            write_file(to, static_cast<const std::byte*>(content.data()), content.bytes(), true);
        });
        ::unlink(from.c_str());
        copier_problem_ = before.empty() && problem ? *problem : before;
        copying_ = false;
    });
}

std::string Client::copier_result() {
    if (copier_.joinable()) copier_.join();
    return std::exchange(copier_problem_, {});
}

std::string Client::folder(const std::string& name) const {
    return collective() ? name : name + "-" + std::to_string(id_);  // names have no dash
}

std::string Client::history(const std::string& name) const {
    return (config_.persistent.empty() ? config_.scratch : config_.persistent) + "/" + folder(name);
}

std::string Client::local(const std::string& name) const {
    if (config_.sync || config_.persistent.empty()) return "";
    // Two runs with the same scratch folder and different persistent folders must not share a part.
    char sum[17];
    std::snprintf(sum, sizeof sum, "%016llx", static_cast<unsigned long long>(hash(history(name))));
    return config_.scratch + "/twinrun-" + folder(name) + "-" + sum;
}

std::string Client::routed_stem(const std::string& name) const {
    return name + "-" + std::to_string(id_) + "-";
}

std::string Client::routed_path(const std::string& name, int version) const {
    return config_.scratch + "/" + routed_stem(name) + std::to_string(version) + ".dat";
}

std::optional<int> Client::routed_version(const std::string& name, const std::string& file) const {
    const std::string begin = routed_stem(name);
    if (!file.starts_with(begin)) return std::nullopt;
    int version = 0;
    const auto [end, failure] =
        std::from_chars(file.data() + begin.size(), file.data() + file.size(), version);
    if (failure != std::errc() || version < 0 || std::string_view(end) != ".dat") return std::nullopt;
    return version;
}

bool Client::anywhere(const std::string& name) {
    std::error_code ignored;
    bool here = runs_.contains(name) || fs::exists(history(name), ignored);
    if (!here && !local(name).empty()) here = fs::exists(local(name), ignored);
    std::int64_t nowhere = here ? 0 : 1;
    if (collective() && MPI_Allreduce(MPI_IN_PLACE, &nowhere, 1, MPI_INT64_T, MPI_MIN, comm_) != MPI_SUCCESS)
        fail("MPI_Allreduce failed: another rank may be gone");
    return nowhere == 0;
}

Client::Run& Client::opened(const std::string& name) {
    if (const auto run = runs_.find(name); run != runs_.end()) return run->second;
    twr_settings* made = nullptr;
    std::optional<std::string> problem;
    Settings settings;
    problem = caught([&] {
        require(twr_settings_create(&made));
        settings.reset(made);
        const auto set = [&](const char* key, const std::string& value) {
            require(twr_settings_set(made, key, value.c_str()));
        };
        set("existing", "append");
        set("replace_steps", "true");
        set("background", config_.sync ? "false" : "true");
        set("keep_steps", std::to_string(config_.max_versions));
        if (!local(name).empty()) set("local", local(name));
        if (!config_.reference.empty()) set("reference", config_.reference + "/" + folder(name));
        for (const auto& [key, value] : config_.settings)
            set(key.c_str(), value);
    });
    agree(problem);
    Run run;
    require(collective() ? twr_open_mpi(&run.handle, history(name).c_str(), made, comm_)
                         : twr_open(&run.handle, history(name).c_str(), made));
    return runs_.emplace(name, run).first->second;
}

void Client::settle(Run& run) {
    if (!run.pending) return;
    // A lost step is reported by the next wait or checkpoint. A restart uses the steps that exist.
    const int status = twr_wait(run.handle);
    if (status != TWR_STEP_LOST) require(status);
    run.pending = false;
}

}  // namespace twinrun::veloc
