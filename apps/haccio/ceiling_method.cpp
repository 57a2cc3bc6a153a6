// SPDX-License-Identifier: Apache-2.0
// What no method beats on one host: a copy in memory, and one process that writes with nothing to
// exchange.
#include <algorithm>
#include <cstring>

#include "haccio/method.hpp"
#include "haccio/posix_file.hpp"

namespace haccio {

namespace {

constexpr std::uint64_t kPiece = std::uint64_t{16} << 20;

class CeilingCopy : public Method {
   public:
    CeilingCopy(Particles& particles, MPI_Comm world)
        : own_("one", world), particles_(particles), copy_(particles.bytes()) {}

    void write(const std::string&, Stopwatch& watch) override {
        std::byte* to = copy_.data();
        for (std::size_t v = 0; v < kVariables; ++v)
            to = std::copy_n(particles_.data(v), particles_.count() * kVariable[v].bytes, to);
        watch.lap("copy");
    }
    void read(const std::string&, Stopwatch& watch) override {
        const std::byte* from = copy_.data();
        for (std::size_t v = 0; v < kVariables; ++v) {
            const std::uint64_t bytes = particles_.count() * kVariable[v].bytes;
            std::copy_n(from, bytes, particles_.data(v));
            from += bytes;
        }
        watch.lap("copy");
    }
    [[nodiscard]] FileGroup group() const override { return own_.get(); }
    [[nodiscard]] bool has_file() const override { return false; }
    [[nodiscard]] bool stores() const override { return false; }

   private:
    OwnGroup own_;
    Particles& particles_;
    std::vector<std::byte> copy_;
};

class CeilingWrite : public Method {
   public:
    CeilingWrite(const Options& options, Particles& particles, MPI_Comm world)
        : own_("one", world),
          bytes_(share_of(own_.get(), particles.count()).total * kParticleBytes),
          sync_(options.sync == Sync::method) {
        if (own_.get().rank == 0) piece_.assign(std::min(bytes_, kPiece), std::byte{0x5A});
    }

    void write(const std::string& path, Stopwatch& watch) override {
        if (own_.get().rank == 0) {
            PosixFile file(path, PosixFile::Mode::write);
            for (std::uint64_t at = 0; at < bytes_; at += kPiece)
                file.write(std::span(piece_).first(std::min(kPiece, bytes_ - at)), at);
            if (sync_) file.sync();
            file.close();
        }
        watch.lap("write");
    }
    void read(const std::string& path, Stopwatch& watch) override {
        if (own_.get().rank == 0) {
            PosixFile file(path, PosixFile::Mode::read);
            for (std::uint64_t at = 0; at < bytes_; at += kPiece)
                file.read(std::span(piece_).first(std::min(kPiece, bytes_ - at)), at);
            file.close();
        }
        watch.lap("read");
    }
    [[nodiscard]] FileGroup group() const override { return own_.get(); }
    [[nodiscard]] bool stores() const override { return false; }

   private:
    OwnGroup own_;
    std::uint64_t bytes_;
    bool sync_;
    std::vector<std::byte> piece_;
};

}  // namespace

std::unique_ptr<Method> make_ceiling(const MethodChoice& choice, const Options& options, Particles& particles,
                                     MPI_Comm world) {
    if (choice.name == "ceiling-copy") return std::make_unique<CeilingCopy>(particles, world);
    return std::make_unique<CeilingWrite>(options, particles, world);
}

}  // namespace haccio
