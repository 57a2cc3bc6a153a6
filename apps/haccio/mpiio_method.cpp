// SPDX-License-Identifier: Apache-2.0
// Through MPI-IO: a call a variable, or one of gathered records; each rank for itself, or all
// together.
#include <algorithm>
#include <climits>
#include <cstring>
#include <nlohmann/json.hpp>

#include "haccio/method.hpp"

namespace haccio {

namespace {

std::string error_text(int code) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(code, text, &length);
    // MPICH goes on with the stack of its own functions.
    std::string line(text);
    line.resize(std::min(line.size(), line.find('\n')));
    if (constexpr const char* kStack = ", error stack:"; line.ends_with(kStack))
        line.resize(line.size() - std::strlen(kStack));
    return line;
}

// An MPI_Info, freed at the end.
class Hints {
   public:
    Hints() { MPI_Info_create(&info_); }
    Hints(const Hints&) = delete;
    Hints& operator=(const Hints&) = delete;
    ~Hints() { MPI_Info_free(&info_); }
    void set(const std::string& name, const std::string& value) {
        MPI_Info_set(info_, name.c_str(), value.c_str());
    }
    [[nodiscard]] MPI_Info get() const { return info_; }

   private:
    MPI_Info info_ = MPI_INFO_NULL;
};

class Datatype {
   public:
    Datatype() = default;
    Datatype(const Datatype&) = delete;
    Datatype& operator=(const Datatype&) = delete;
    ~Datatype() {
        if (type_ != MPI_DATATYPE_NULL) MPI_Type_free(&type_);
    }
    // `bytes` bytes of each `extent`.
    void make(std::uint64_t bytes, std::uint64_t extent) {
        MPI_Datatype dense = MPI_DATATYPE_NULL;
        MPI_Type_contiguous(static_cast<int>(bytes), MPI_BYTE, &dense);
        MPI_Type_create_resized(dense, 0, static_cast<MPI_Aint>(extent), &type_);
        MPI_Type_free(&dense);
        MPI_Type_commit(&type_);
    }
    [[nodiscard]] MPI_Datatype get() const { return type_; }

   private:
    MPI_Datatype type_ = MPI_DATATYPE_NULL;
};

class MpiioMethod : public Method {
   public:
    MpiioMethod(const MethodChoice& choice, const Options& options, Particles& particles, MPI_Comm world)
        : own_(choice.setting("files").value_or("one"), world),
          particles_(particles),
          share_(share_of(own_.get(), particles.count())),
          places_(places(options.layout, share_)),
          layout_(options.layout),
          packed_(choice.name.ends_with("-packed") && options.layout != Layout::variables),
          collective_(choice.name.starts_with("mpiio-collective") ||
                      choice.name.starts_with("mpiio-two-phase")),
          sync_(options.sync == Sync::method) {
        if (choice.name.starts_with("mpiio-two-phase")) {
            for (const char* name : {"romio_cb_write", "romio_cb_read"})
                hints_.set(name, "enable");
            // Nothing to sieve: two-phase I/O leaves no gaps here.
            for (const char* name : {"romio_ds_write", "romio_ds_read"})
                hints_.set(name, "disable");
            hints_.set("collective_buffering", "true");  // OMPIO's, and the standard's
        }
        for (const auto& [name, value] : choice.settings) {
            if (name != "files") hints_.set(name, value);
        }
        for (std::size_t v = 0; v < kVariables; ++v) {
            element_[v].make(kVariable[v].bytes, kVariable[v].bytes);
            strided_[v].make(kVariable[v].bytes, kParticleBytes);
        }
        record_.make(kParticleBytes, kParticleBytes);
        if (packed_) buffer_.resize(particles.bytes());
    }

    void write(const std::string& path, Stopwatch& watch) override {
        MPI_File file = open(path, MPI_MODE_CREATE | MPI_MODE_RDWR);
        watch.lap("open");
        if (packed_) {
            pack(particles_, layout_, buffer_.data());
            watch.lap("pack");
        }
        transfer(file, collective_ ? write_at_all : write_at);
        watch.lap("write");
        if (sync_) {
            keep(MPI_File_sync(file), "cannot sync");
            watch.lap("sync");
        }
        close(file, path);
        watch.lap("close");
    }

    void read(const std::string& path, Stopwatch& watch) override {
        MPI_File file = open(path, MPI_MODE_RDONLY);
        watch.lap("open");
        transfer(file, collective_ ? MPI_File_read_at_all : MPI_File_read_at);
        watch.lap("read");
        if (packed_) {
            unpack(buffer_.data(), layout_, particles_);
            watch.lap("pack");
        }
        close(file, path);
        watch.lap("close");
    }

    [[nodiscard]] FileGroup group() const override { return own_.get(); }
    [[nodiscard]] std::string details() override { return used_hints_.dump(); }

   private:
    using Transfer = int (*)(MPI_File, MPI_Offset, void*, int, MPI_Datatype, MPI_Status*);

    // MPI 2 has no const here.
    static int write_at(MPI_File file, MPI_Offset offset, void* data, int count, MPI_Datatype type,
                        MPI_Status* status) {
        return MPI_File_write_at(file, offset, data, count, type, status);
    }
    static int write_at_all(MPI_File file, MPI_Offset offset, void* data, int count, MPI_Datatype type,
                            MPI_Status* status) {
        return MPI_File_write_at_all(file, offset, data, count, type, status);
    }

    MPI_File open(const std::string& path, int mode) {
        error_.clear();
        MPI_File file = MPI_FILE_NULL;
        if (const int code = MPI_File_open(own_.get().comm, path.c_str(), mode, hints_.get(), &file);
            code != MPI_SUCCESS)
            throw Failure(path + ": cannot open it: " + error_text(code));
        if (own_.get().rank == 0 && used_hints_.empty()) remember_hints(file);
        return file;
    }

    void close(MPI_File file, const std::string& path) {
        keep(MPI_File_close(&file), "cannot close it");
        if (!error_.empty()) throw Failure(path + ": " + error_);
    }

    // The first error. Later calls are still made, because other ranks wait in them.
    void keep(int code, const char* what) {
        if (code != MPI_SUCCESS && error_.empty()) error_ = std::string(what) + ": " + error_text(code);
    }

    void call(Transfer function, MPI_File file, std::uint64_t offset, void* data, std::uint64_t items,
              MPI_Datatype type) {
        if (items > INT_MAX) {
            if (error_.empty()) error_ = "MPI-IO's calls take 2147483647 items; use fewer particles a rank";
            items = 0;
        }
        MPI_Status status;
        const int code =
            function(file, static_cast<MPI_Offset>(offset), data, static_cast<int>(items), type, &status);
        keep(code, "cannot transfer");
        int done = 0;
        if (code != MPI_SUCCESS) return;
        MPI_Get_count(&status, type, &done);
        if (done != static_cast<int>(items) && error_.empty())
            error_ = "ends after " + std::to_string(done) + " of " + std::to_string(items) + " items";
    }

    void transfer(MPI_File file, Transfer function) {
        if (packed_)
            return call(function, file, places_[0].offset, buffer_.data(), share_.count, record_.get());
        for (std::size_t v = 0; v < kVariables; ++v) {
            std::uint64_t offset = places_[v].offset;
            if (layout_ == Layout::records) {
                keep(MPI_File_set_view(file, static_cast<MPI_Offset>(offset), element_[v].get(),
                                       strided_[v].get(), "native", MPI_INFO_NULL),
                     "cannot set the view");
                offset = 0;
            }
            call(function, file, offset, particles_.data(v), share_.count, element_[v].get());
        }
    }

    void remember_hints(MPI_File file) {
        MPI_Info info = MPI_INFO_NULL;
        if (MPI_File_get_info(file, &info) != MPI_SUCCESS) return;
        int hints = 0;
        MPI_Info_get_nkeys(info, &hints);
        for (int i = 0; i < hints; ++i) {
            char name[MPI_MAX_INFO_KEY + 1] = "", value[MPI_MAX_INFO_VAL + 1] = "";
            int there = 0;
            MPI_Info_get_nthkey(info, i, name);
            MPI_Info_get(info, name, MPI_MAX_INFO_VAL, value, &there);
            if (there) used_hints_["hints"][name] = value;
        }
        MPI_Info_free(&info);
    }

    OwnGroup own_;
    Particles& particles_;
    Share share_;
    std::array<Place, kVariables> places_;
    Layout layout_;
    bool packed_, collective_, sync_;
    Hints hints_;
    std::array<Datatype, kVariables> element_, strided_;
    Datatype record_;
    std::vector<std::byte> buffer_;
    std::string error_;
    nlohmann::json used_hints_ = nlohmann::json::object();
};

}  // namespace

std::unique_ptr<Method> make_mpiio(const MethodChoice& choice, const Options& options, Particles& particles,
                                   MPI_Comm world) {
    return std::make_unique<MpiioMethod>(choice, options, particles, world);
}

}  // namespace haccio
