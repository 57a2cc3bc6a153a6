// SPDX-License-Identifier: Apache-2.0
// Every rank writes its own, with pwrite.
#include "haccio/method.hpp"
#include "haccio/posix_file.hpp"

namespace haccio {

namespace {

class PosixMethod : public Method {
   public:
    PosixMethod(const MethodChoice& choice, const Options& options, Particles& particles, MPI_Comm world)
        : own_(choice.setting("files").value_or("one"), world),
          particles_(particles),
          share_(share_of(own_.get(), particles.count())),
          places_(places(options.layout, share_)),
          layout_(options.layout),
          packed_(choice.name == "posix-packed" && options.layout != Layout::variables),
          sync_(options.sync == Sync::method) {
        if (packed_) buffer_.resize(particles.bytes());
    }

    void write(const std::string& path, Stopwatch& watch) override {
        PosixFile file(path, PosixFile::Mode::write);
        watch.lap("open");
        if (packed_) {
            pack(particles_, layout_, buffer_.data());
            watch.lap("pack");
            file.write(buffer_, places_[0].offset);
        } else {
            for (std::size_t v = 0; v < kVariables; ++v) {
                each(v, [&](std::byte* bytes, std::uint64_t count, std::uint64_t offset) {
                    file.write({bytes, count}, offset);
                });
            }
        }
        watch.lap("write");
        if (sync_) {
            file.sync();
            watch.lap("sync");
        }
        file.close();
        watch.lap("close");
    }

    void read(const std::string& path, Stopwatch& watch) override {
        PosixFile file(path, PosixFile::Mode::read);
        watch.lap("open");
        if (packed_) {
            file.read(buffer_, places_[0].offset);
            watch.lap("read");
            unpack(buffer_.data(), layout_, particles_);
            watch.lap("pack");
        } else {
            for (std::size_t v = 0; v < kVariables; ++v) {
                each(v, [&](std::byte* bytes, std::uint64_t count, std::uint64_t offset) {
                    file.read({bytes, count}, offset);
                });
            }
            watch.lap("read");
        }
        file.close();
        watch.lap("close");
    }

    [[nodiscard]] FileGroup group() const override { return own_.get(); }

   private:
    // Pieces of a variable that are consecutive in the file: one, or each value for itself.
    template <class Use>
    void each(std::size_t v, const Use& use) {
        const std::uint64_t bytes = kVariable[v].bytes, count = particles_.count();
        const Place& place = places_[v];
        if (place.stride == bytes) {
            if (count > 0) use(particles_.data(v), count * bytes, place.offset);
            return;
        }
        for (std::uint64_t i = 0; i < count; ++i)
            use(particles_.data(v) + i * bytes, bytes, place.offset + i * place.stride);
    }

    OwnGroup own_;
    Particles& particles_;
    Share share_;
    std::array<Place, kVariables> places_;
    Layout layout_;
    bool packed_, sync_;
    std::vector<std::byte> buffer_;
};

}  // namespace

std::unique_ptr<Method> make_posix(const MethodChoice& choice, const Options& options, Particles& particles,
                                   MPI_Comm world) {
    return std::make_unique<PosixMethod>(choice, options, particles, world);
}

}  // namespace haccio
