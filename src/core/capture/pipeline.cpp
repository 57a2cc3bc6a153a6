#include "capture/pipeline.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <span>
#include <utility>

#include "base/start_thread.hpp"

namespace twinrun {

Pipeline::Pipeline(Tiers& tiers, StagingRing* ring, std::uint64_t heap_limit, int threads, Lost lost,
                   Diverged diverged)
    : tiers_(tiers),
      ring_(ring),
      heap_limit_(heap_limit),
      lost_(std::move(lost)),
      diverged_(std::move(diverged)) {
    // First: without room for a thread that runs already, the process would end.
    threads_.reserve(static_cast<std::size_t>(threads));
    for (int i = 0; i < threads; ++i) {
        try {
            threads_.push_back(start_thread([this] { run(); }));
        } catch (const std::exception&) {
            if (i != 0) break;  // the system allows no more threads: those that started do the work
            throw;
        }
    }
}

Pipeline::~Pipeline() {
    drain();
    {
        const std::lock_guard guard(mutex_);
        stopping_ = true;
    }
    work_.notify_all();
    for (auto& thread : threads_)
        thread.join();
}

void Pipeline::add(const std::shared_ptr<PendingStep>& step, double& waited) {
    std::unique_lock lock(mutex_);
    const auto fits = [&] { return heap_used_ == 0 || heap_used_ + step->heap_bytes <= heap_limit_; };
    if (!fits()) {
        const auto start = std::chrono::steady_clock::now();
        settled_.wait(lock, fits);
        waited += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
    lock.unlock();
    // Not in files_of(): a flush thread that waited for room there would hold up earlier steps,
    // whose commits make room.
    const auto start = std::chrono::steady_clock::now();
    step->place = tiers_.place(bytes_of(*step));
    waited += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    try {
        lock.lock();
        steps_.push_back(step);
        heap_used_ += step->heap_bytes;
    } catch (const std::exception&) {
        tiers_.abandon(step->place, step->folder);
        throw;
    }
}

void Pipeline::charge(PendingStep& step, std::uint64_t bytes) {
    const std::lock_guard guard(mutex_);
    step.heap_bytes += bytes;
    heap_used_ += bytes;
}

// An estimate of the bytes of the step's files.
std::uint64_t Pipeline::bytes_of(const PendingStep& step) {
    std::uint64_t bytes = step.layout->file_bytes + (64 << 10);
    for (const FieldMetadata& field : step.layout->fields) {
        for (std::size_t s = 0; s < kSections; ++s)
            bytes += field.section_bytes(static_cast<Section>(s));
        if (field.partial()) bytes += largest_sums_bytes(field.data_bytes());
    }
    return bytes;
}

void Pipeline::submit(Load load) {
    if (threads_.empty()) {
        {
            const std::lock_guard guard(mutex_);
            ++load.step->submitted;
        }
        AlignedBytes residues;
        work(load, residues);
        done(load.step);
        return;
    }
    const auto step = load.step;
    const std::byte* const block = load.block;
    try {
        const std::lock_guard guard(mutex_);
        loads_.push_back(std::move(load));
        ++step->submitted;
    } catch (const std::exception&) {
        if (block != nullptr) ring_->release(block);
        fail(*step, out_of_memory());
        return;
    }
    work_.notify_one();
}

void Pipeline::seal(const std::shared_ptr<PendingStep>& step, std::optional<Error> error) {
    if (error) fail(*step, std::move(*error));
    bool complete = false;
    bool delegated = false;
    {
        const std::lock_guard guard(mutex_);
        step->sealed = true;
        complete = step->done == step->submitted;
        // Another thread finishes the step, after an empty load: storage must not hold up the
        // application.
        if (complete && !threads_.empty()) {
            try {
                Load last;
                last.step = step;
                loads_.push_back(std::move(last));
                ++step->submitted;
                delegated = true;
            } catch (const std::exception&) {  // no memory: this thread finishes the step
            }
        }
    }
    if (delegated) {
        work_.notify_one();
    } else if (complete) {
        finish(*step);
        commit_ready();
    }
}

void Pipeline::drain() {
    std::unique_lock lock(mutex_);
    settled_.wait(lock, [&] { return steps_.empty() && !committing_; });
}

void Pipeline::fail(PendingStep& step, Error error) {
    const std::lock_guard guard(step.error_mutex);
    if (!step.error) step.error = std::move(error);
    step.failed = true;
}

void Pipeline::prepare(PendingStep& step) {
    step.prepared.run([&] {
        step.digests.clear();  // of an earlier call that ran out of memory
        step.digests.reserve(step.layout->fields.size());
        for (std::size_t i = 0; i < step.layout->fields.size(); ++i)
            step.digests.emplace_back(step.layout->fields[i], step.layout->sums(i), step.layout->on_device[i],
                                      step.ids.empty() ? nullptr : step.ids[i]);
    });
}

Result<> Pipeline::digest_slice(PendingStep& step, const Segment& segment, std::uint64_t slice,
                                const ElementView& view, std::byte* residues) {
    FieldDigests& digests = step.digests[segment.field];
    digests.make(slice, view, residues);
    if (step.check == nullptr) return success();
    return step.check->slice(segment.field, digests, slice, digests.chunks(slice), residues);
}

Result<> Pipeline::digest(PendingStep& step, const Piece& piece, const std::byte* image,
                          std::byte* residues) {
    for (const Segment& segment : piece.segments) {
        const FieldDigests& digests = step.digests[segment.field];
        const DType dtype = digests.field().dtype;
        const std::byte* at = image + segment.offset;
        std::byte* to = residues + segment.residue_offset;
        for (std::uint64_t s = segment.first_slice; s < segment.first_slice + segment.slices; ++s) {
            TWR_CHECK(digest_slice(step, segment, s, dense_view(dtype, at), to));
            at += digests.items(s) * item_bytes(dtype);
            to += digests.residue_bytes(s);
        }
    }
    return success();
}

Result<StepFiles*> Pipeline::files_of(PendingStep& step) {
    const std::lock_guard guard(step.files_mutex);
    if (step.files != nullptr) return step.files.get();
    const std::uint64_t bytes = bytes_of(step);
    for (;;) {
        if (step.place.writer == nullptr) {
            return Error{ErrorCode::no_space,
                         "the step's " + std::to_string(bytes) +
                             " bytes have no room on the node-local tier: raise local_limit"};
        }
        auto files = StepFiles::create(*step.place.writer, step.step, step.folder, step.layout, shared_file_);
        if (files) {
            step.files = std::move(files).value();
            return step.files.get();
        }
        if (!step.place.local) return std::move(files).error();
        step.place = tiers_.next_place(step.place, bytes, files.error().code);
        if (step.place.writer == nullptr) return std::move(files).error();
    }
}

void Pipeline::write(PendingStep& step, const Piece& piece, const std::byte* image,
                     const std::byte* residues) {
    if (step.failed) return;
    const auto put = [&]() -> Result<> {
        TWR_TRY(StepFiles * files, files_of(step));
        if (image != nullptr && step.layout->keep_data)
            TWR_CHECK(files->write_data(piece.offset, {image, piece.bytes}));
        for (const Segment& segment : piece.segments) {
            if (residues == nullptr || segment.residue_bytes == 0) continue;
            TWR_CHECK(files->write_residues(segment.field,
                                            step.digests[segment.field].residue_offset(segment.first_slice),
                                            {residues + segment.residue_offset, segment.residue_bytes}));
        }
        return success();
    };
    if (auto written = put(); !written) fail(step, std::move(written).error());
}

void Pipeline::work(Load& load, AlignedBytes& residues) try {
    PendingStep& step = *load.step;
    if (!step.failed) prepare(step);
    if (!step.failed && load.piece != nullptr) {
        const std::byte* made = load.residues;
        Result<> digested = success();
        if (load.make_digests) {
            std::byte* const to = residues.reserve(load.piece->residue_bytes);
            digested = digest(step, *load.piece, load.image, to);
            made = to;
        } else if (load.make_sums) {
            for (const Segment& segment : load.piece->segments) {
                FieldDigests& digests = step.digests[segment.field];
                const std::byte* at = load.image + segment.offset;
                for (std::uint64_t s = segment.first_slice; s < segment.first_slice + segment.slices; ++s) {
                    digests.sum(s, dense_view(digests.field().dtype, at));
                    at += digests.items(s) * item_bytes(digests.field().dtype);
                }
            }
        }
        if (!digested) {
            fail(step, std::move(digested).error());
        } else {
            write(step, *load.piece, load.image, made);
        }
    } else if (!step.failed && load.residues != nullptr) {
        auto files = files_of(step);
        Result<> written = success();
        if (!files) {
            written = std::move(files).error();
        } else {
            written = (*files)->write_residues(load.field, load.residue_offset,
                                               {load.residues, load.residue_bytes});
        }
        if (!written) fail(step, std::move(written).error());
    }
    if (load.block != nullptr) ring_->release(load.block);
} catch (const std::exception&) {
    fail(*load.step, out_of_memory());
    if (load.block != nullptr) ring_->release(load.block);
}

void Pipeline::run() {
    AlignedBytes residues;
    std::unique_lock lock(mutex_);
    for (;;) {
        work_.wait(lock, [&] { return stopping_ || !loads_.empty(); });
        if (loads_.empty()) return;
        Load load = std::move(loads_.front());
        loads_.pop_front();
        lock.unlock();
        work(load, residues);
        done(load.step);
        load = {};
        lock.lock();
    }
}

void Pipeline::done(const std::shared_ptr<PendingStep>& step) {
    bool complete = false;
    {
        const std::lock_guard guard(mutex_);
        complete = ++step->done == step->submitted && step->sealed;
    }
    if (!complete) return;
    finish(*step);
    commit_ready();
}

// All loads are done. Writes the rest of the step's files and syncs them under their final names;
// of a shared layout only the digests, as share() does the rest. nullopt: the step failed.
std::optional<RankStep> Pipeline::finish_files(PendingStep& step) try {
    if (step.failed) return std::nullopt;
    prepare(step);
    auto files = files_of(step);  // a step without elements has no files yet
    Result<> checked = success();
    for (std::size_t f = 0; files && step.left && checked && f < step.left->checksums.size(); ++f)
        checked = (*files)->write_residue_checksums(f, step.left->places[f], step.left->checksums[f]);
    Result<RankStep> ready = RankStep();
    if (!files) {
        ready = Error(files.error());
    } else if (!checked) {
        ready = std::move(checked).error();
    } else if (!step.layout->shared) {
        ready = (*files)->finish(step.digests);
    } else if (auto written = (*files)->write_digests(step.digests); !written) {
        ready = std::move(written).error();
    }
    if (!ready) {
        fail(step, std::move(ready).error());
        return std::nullopt;
    }
    ready->files.blocked_seconds = step.blocked_seconds;
    if (step.layout->recorded) {
        step.image = (*files)->take_image();
        step.residues = (*files)->take_residues();
        if (step.left && step.left->on_device.size != step.residues.size) {
            fail(step, {ErrorCode::internal, "residues of another size than the metadata lacks"});
            return std::nullopt;
        }
    }
    if (step.check != nullptr) {
        if (!step.divergence && (step.divergence = step.check->result())) diverged_(*step.divergence);
        if (step.divergence && log_divergence_) ready->files.divergence = describe(*step.divergence);
    }
    return std::move(ready).value();
} catch (const std::exception&) {
    fail(step, out_of_memory());
    return std::nullopt;
}

void Pipeline::finish(PendingStep& step) {
    auto ready = finish_files(step);
    if (step.failed || !step.layout->shared) step.files.reset();
    try {
        if (step.failed) tiers_.abandon(step.place, step.folder);
    } catch (const std::exception&) {  // its files stay until the history is opened again
    }
    const std::lock_guard guard(mutex_);
    if (!step.failed) step.ready = std::move(ready);
    std::vector<FieldDigests>().swap(step.digests);
    step.finished = true;
}

// Stores the step's data as a difference. A step that cannot be recorded is lost.
void Pipeline::record(PendingStep& step) {
    if (!step.ready) return;
    Result<> recorded = success();
    ResidueBytes residues{step.residues.bytes.data(), step.residues.size};
    if (step.left) residues = {step.left->on_device.bytes, step.residues.size, step.left->on_device.device};
    try {
        recorded = recorder_->record(tiers_, step.place, step.step, *step.layout,
                                     {step.image.data(), step.on_device, residues}, *step.ready);
    } catch (const std::exception&) {
        recorded = out_of_memory();
    }
    step.image = {};
    step.residues = {};
    step.left.reset();
    step.device_memory.reset();
    if (!recorded) give_up(step, std::move(recorded).error());
}

// Writes the step's data to the file that ranks share. Collective: the other ranks wait for this
// one, so that it takes part even with a failed step.
void Pipeline::share(PendingStep& step) {
    const bool whole = step.ready && step.files != nullptr;
    Result<> shared = success();
    try {
        SharedPart part;
        part.ordinal = step.ordinal;
        part.well = whole;
        if (whole) {
            part.folder = step.files->folder().c_str();
            part.bytes = step.files->image();
        }
        auto place = comm_->write_shared(whole ? step.place.writer->system() : *system_, part);
        if (!place) {
            shared = std::move(place).error();
        } else if (whole) {
            auto entry = step.files->finish_shared(*place);
            if (!entry) {
                shared = std::move(entry).error();
            } else {
                entry->files.blocked_seconds = step.ready->files.blocked_seconds;
                entry->files.divergence = std::move(step.ready->files.divergence);
                step.ready = std::move(entry).value();
            }
        }
    } catch (const std::exception&) {
        shared = out_of_memory();
    }
    step.files.reset();
    if (whole && !shared) give_up(step, std::move(shared).error());
}

// Discards a finished step when its turn to be committed comes, and removes its files.
void Pipeline::give_up(PendingStep& step, Error error) {
    fail(step, std::move(error));
    step.ready.reset();
    try {
        tiers_.abandon(step.place, step.folder);
    } catch (const std::exception&) {  // its files stay until the history is opened again
    }
}

// Reports a step that is lost to out-of-memory before it was given to the tiers. reported: lost_
// was already called for it, if it was not ready.
void Pipeline::lose(PendingStep& step, bool reported) {
    if (reported && !step.ready) return;
    try {
        if (step.ready) give_up(step, out_of_memory());
        lost_(step, out_of_memory());
    } catch (const std::exception&) {  // no memory even for the report
    }
}

// Commits the finished steps at the head of the queue. If another thread does so already, it will
// commit these too.
void Pipeline::commit_ready() {
    std::unique_lock lock(mutex_);
    if (committing_) return;
    committing_ = true;
    while (!steps_.empty() && steps_.front()->finished) {
        const auto first = steps_.front();
        std::vector<std::shared_ptr<PendingStep>> batch;
        std::vector<Tiers::Ready> ready;
        std::size_t whole = 0;
        try {
            for (const auto& step : steps_) {
                // Recorded steps go one by one, because the next difference depends on whether this
                // one was committed; shared ones, because all ranks write them in one order.
                const bool alone = recorder_ != nullptr || comm_ != nullptr;
                if (!step->finished || (alone && !batch.empty())) break;
                if (alone) {
                    batch.push_back(step);
                    ++whole;
                    break;
                }
                batch.push_back(step);
                if (step->ready) ready.push_back({step->step, step->place, *step->ready});
                ++whole;
            }
        } catch (const std::exception&) {  // no memory: the rest is committed in the next round
            batch.resize(whole);
        }
        const std::size_t settled = std::max<std::size_t>(batch.size(), 1);
        std::size_t reported = 0;  // how far into the batch lost_ was called for lost steps
        bool handed_over = false;  // the tiers have the steps, and report each one
        lock.unlock();
        try {
            if (recorder_ != nullptr && !batch.empty()) {
                record(*first);
                if (first->ready) ready.push_back({first->step, first->place, *first->ready});
            }
            if (comm_ != nullptr) {
                // share() makes it fail on the other ranks
                if (batch.empty()) give_up(*first, out_of_memory());
                share(*first);
                if (first->ready) ready.push_back({first->step, first->place, *first->ready});
            }
            if (batch.empty()) lost_(*first, out_of_memory());
            for (; reported < batch.size(); ++reported) {
                if (!batch[reported]->ready) lost_(*batch[reported], *batch[reported]->error);
            }
            handed_over = true;
            tiers_.commit(ready);
        } catch (const std::exception&) {
            for (std::size_t i = 0; !handed_over && i < settled; ++i)
                lose(batch.empty() ? *first : *batch[i], i < reported);
        }
        if (recorder_ != nullptr)
            recorder_->settled(tiers_, first->place, first->step, first->ready ? &*first->ready : nullptr);
        lock.lock();
        for (std::size_t i = 0; i < settled; ++i) {
            heap_used_ -= steps_.front()->heap_bytes;
            steps_.pop_front();
        }
        settled_.notify_all();
    }
    committing_ = false;
    settled_.notify_all();
}

}  // namespace twinrun
