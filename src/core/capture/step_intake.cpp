#include "capture/step_intake.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "capture/failure.hpp"
#include "history/names.hpp"

namespace twinrun {

namespace {

// If only digests are kept, arrays of up to this many bytes together are copied and digested later:
// the copy takes less of the caller's time. Larger ones are digested in place.
constexpr std::uint64_t kCopiedBytes = 4 << 20;

}  // namespace

StepIntake::Taking StepIntake::begin(std::int64_t number, std::uint32_t attempt,
                                     std::uint64_t ordinal) const {
    Taking taking;
    taking.step = std::make_shared<PendingStep>();
    PendingStep& step = *taking.step;
    step.ordinal = ordinal;
    step.step = number;
    step.folder = step_folder(number, attempt);
    const std::shared_ptr<const StepLayout>& layout = to_.intake->layout();
    step.layout = layout;
    step.ids = to_.intake->ids();
    // Shared data is gathered on the heap; recorded data too, unless it stays on a device.
    step.heap_bytes = layout->digest_bytes + (layout->shared ? layout->file_bytes : 0);
    for (std::size_t i = 0; layout->recorded && i < layout->fields.size(); ++i) {
        if (to_.stage == nullptr || !layout->on_device[i]) step.heap_bytes += layout->fields[i].data_bytes();
    }
    return taking;
}

// Whether the residues of a step stay on its device until they are recorded from there, as far as
// that is known before the step is taken.
bool StepIntake::residues_stay(const StepLayout& layout, const Intake::OnDevices& devices) const {
    // A comparison with a reference reads them on the host.
    if (layout.device_residue_bytes == 0 || to_.reference != nullptr) return false;
    const bool one_device =
        std::all_of(devices.arrays.begin(), devices.arrays.end(),
                    [&](const DeviceArray& array) { return array.device == devices.arrays[0].device; });
    // Without a stage the data comes to the host where capture() returns before it is recorded.
    const bool data_stays = to_.stage != nullptr
                                ? to_.stage->holds(devices.arrays, layout.device_residue_bytes)
                                : to_.ring == nullptr;
    return one_device && data_stays;
}

void StepIntake::take(Taking& taking, const std::vector<CapturedField>& fields) const try {
    const std::shared_ptr<PendingStep>& step = taking.step;
    const StepLayout& layout = *step->layout;
    const Intake::OnDevices& devices = taking.devices;
    double& waited = taking.waited_seconds;
    taking.devices = Intake::on_devices(*step, fields);
    step->residues_stay = residues_stay(layout, devices);
    if (step->residues_stay) step->heap_bytes -= layout.residue_bytes;
    to_.pipeline->add(step, waited);
    taking.added = true;
    if (to_.reference != nullptr) step->check = to_.reference->check(step->step, layout.fields);
    const bool must_know = stop_on_divergence_ && step->check != nullptr;
    const bool digest_now =
        to_.ring == nullptr || must_know || (!layout.keep_data && layout.array_bytes > kCopiedBytes);
    if (digest_now || !devices.numbers.empty()) Pipeline::prepare(*step);
    if (to_.stage != nullptr && !must_know && !devices.numbers.empty()) {
        std::vector<const DeviceArray*> arrays;
        for (const DeviceArray& array : devices.arrays)
            arrays.push_back(&array);
        taking.staged = to_.stage->take(devices.metadata, arrays, layout.keep_data,
                                        step->residues_stay ? layout.device_residue_bytes : 0, waited);
    }
    Result<>& taken = taking.taken;
    if (taking.staged == nullptr) taken = to_.intake->take_devices(step, devices, nullptr, waited);
    if (taken) taken = to_.intake->take_host(step, digest_now, waited);
    if (taken && must_know) {
        step->divergence = step->check->result();
        taking.divergence = step->divergence;
    }
} catch (const std::exception&) {
    taking.taken = out_of_memory();
}

// Lets the stage's thread bring the staged arrays to the host and seal the step. false: the caller
// seals it.
bool StepIntake::hand_over(Taking& taking) const {
    if (taking.staged == nullptr) return false;
    // After an error too: then the stage's thread only releases the staged memory.
    try {
        to_.stage->hand_over(taking.staged, [this, step = taking.step, staged = taking.staged,
                                             devices = std::move(taking.devices), ok = taking.taken.ok()] {
            if (!ok) return;
            double waited = 0;  // ignored: the application does not wait here
            Result<> brought = out_of_memory();
            try {
                brought = to_.intake->take_devices(step, devices, staged, waited);
            } catch (const std::exception&) {  // brought stays out_of_memory()
            }
            to_.pipeline->seal(step,
                               brought ? std::nullopt : std::optional<Error>(std::move(brought).error()));
        });
        return taking.taken.ok();
    } catch (const std::exception&) {
        if (taking.taken) taking.taken = out_of_memory();
    }
    return false;
}

void StepIntake::finish(Taking& taking) const {
    if (hand_over(taking)) return;
    const Result<>& taken = taking.taken;
    taking.step->reported = !taken;
    if (taking.added)
        to_.pipeline->seal(taking.step, taken ? std::nullopt : std::optional<Error>(taken.error()));
}

}  // namespace twinrun
