#include "data/instances.h"

#include <spdlog/spdlog.h>
#include <xxhash.h>

#include <algorithm>
#include <filesystem>

#include "data/file_list.h"
#include "data/repetition.h"
#include "kernels/error.h"

namespace olmo {
namespace {

constexpr int32_t kIgnored = -100;
constexpr int64_t kCheckedAtOpen = int64_t{1} << 30;  // bytes of tokens whose ids are all checked when files are opened
constexpr int64_t kSampleBytes = 4096;
constexpr int64_t kSamples = 4;

// Hash of what a file begins and ends with and has at places in between: other data of the same size has another.
uint64_t sample(const std::byte* data, int64_t bytes) {
  const int64_t length = std::min(bytes, kSampleBytes);
  uint64_t hash = 0;
  for (int64_t i = 0; i < kSamples; ++i) {
    const int64_t begin = (bytes - length) / (kSamples - 1) * i;
    hash = XXH3_64bits_withSeed(data + (i + 1 < kSamples ? begin : bytes - length), static_cast<size_t>(length), hash);
  }
  return hash;
}

}  // namespace

Instances::Instances(const LoaderSettings& settings) : settings_(settings) {
  const int64_t length = settings.sequence_length;
  if (length < 1) throw UserError("data: sequence_length is {}; it must be at least 1", length);
  if (settings.vocab_size < 1 || settings.vocab_size > INT32_MAX) {
    throw UserError("data: vocab_size is {}; allowed: 1 to {}", settings.vocab_size, INT32_MAX);
  }
  if (settings.document_mask && (settings.eos < 0 || settings.eos >= settings.vocab_size)) {
    throw UserError("data: document_mask needs an end-of-text id inside the vocabulary, got {}; set data.eos",
                    settings.eos);
  }
  const TokenType type = parse_token_type(settings.dtype, settings.vocab_size);
  first_.push_back(0);
  for (const std::string& path : list_token_files(settings.files, settings.mix_base, settings.tokenizer_id)) {
    files_.emplace_back(path, type);
    tokens_ += files_.back().tokens();
    first_.push_back(first_.back() + files_.back().tokens() / length);
  }
  if (count() == 0) {
    throw UserError(
        "token file {}: {} tokens in {} file(s), none with a whole sequence of {}; shorten "
        "data.sequence_length or give more data",
        files_[0].path(), tokens_, files_.size(), length);
  }
  for (const TokenFile& file : files_) {
    if (file.tokens() >= length || settings.rank != 0) continue;
    spdlog::warn("token file {}: {} tokens are fewer than one sequence of {}; nothing of it is used", file.path(),
                 file.tokens(), length);
  }
  if (count() > int64_t{UINT32_MAX}) {
    throw UserError(
        "data: {} sequences of {} tokens; at most {} are supported: lengthen data.sequence_length or split "
        "the data",
        count(), length, UINT32_MAX);
  }
  open_masks(settings);
  check_ids(settings.vocab_size);
}

void Instances::open_masks(const LoaderSettings& settings) {
  if (settings.label_masks.empty()) return;
  const std::vector<std::string> paths = expand_globs(settings.label_masks, "data.label_masks");
  if (paths.size() != files_.size()) {
    throw UserError("data.label_masks: {} files for {} token files; give one for each, in the same order", paths.size(),
                    files_.size());
  }
  for (size_t i = 0; i < paths.size(); ++i) {
    masks_.emplace_back(paths[i], "label mask");
    const MappedFile& mask = masks_.back();
    if (mask.size() != files_[i].tokens()) {
      throw UserError("label mask {}: {} bytes for the {} tokens of {}; it must have one byte per token", paths[i],
                      mask.size(), files_[i].tokens(), files_[i].path());
    }
    const auto* bad =
        std::find_if(mask.data(), mask.data() + mask.size(), [](std::byte b) { return b > std::byte{1}; });
    if (bad != mask.data() + mask.size()) {
      throw UserError("label mask {}: byte {} is {}; each must be 0 (ignored) or 1", paths[i], bad - mask.data(),
                      std::to_integer<int>(*bad));
    }
  }
}

void Instances::check_ids(int64_t vocab_size) const {
  int64_t bytes = 0;
  for (const TokenFile& file : files_) {
    bytes += file.file_bytes();
    if (bytes > kCheckedAtOpen) return;
    file.check(vocab_size);
  }
}

std::string Instances::fingerprint() const {
  std::string text = fmt::format("sequence_length={},shuffle={},seed={}", settings_.sequence_length, settings_.shuffle,
                                 settings_.seed);
  for (size_t i = 0; i < files_.size(); ++i) {
    const TokenFile& file = files_[i];
    text += fmt::format("\n{},{},{},{:x}", std::filesystem::path(file.path()).filename().string(), file.file_bytes(),
                        name_of(file.type()), sample(file.file_data(), file.file_bytes()));
    if (!masks_.empty()) text += fmt::format(",{:x}", sample(masks_[i].data(), masks_[i].size()));
  }
  return fmt::format("{:016x}", XXH3_64bits(text.data(), text.size()));
}

void Instances::start(Batch& batch, int64_t rows) const {
  const auto cells = static_cast<size_t>(rows * settings_.sequence_length);
  batch.rows = 0;
  batch.sequence_length = settings_.sequence_length;
  batch.valid_labels = batch.filtered_rows = 0;
  for (auto* values : {&batch.ids, &batch.labels, &batch.positions, &batch.document_start}) values->clear();
  batch.row_in_step.clear();
  for (auto* values : {&batch.ids, &batch.labels, &batch.positions}) values->reserve(cells);
  if (settings_.document_mask) batch.document_start.reserve(cells);
  batch.row_in_step.reserve(static_cast<size_t>(rows));
}

void Instances::append(int64_t instance, int64_t row_in_step, Batch& batch) const {
  const int64_t length = settings_.sequence_length;
  // Files without instances share their first_ with the next one: the last such entry is the file meant.
  const auto file = static_cast<size_t>(std::upper_bound(first_.begin(), first_.end(), instance) - first_.begin() - 1);
  const int64_t begin = (instance - first_[file]) * length;
  const size_t cell = batch.ids.size();
  batch.ids.resize(cell + static_cast<size_t>(length));
  int32_t* ids = &batch.ids[cell];
  files_[file].read(begin, length, settings_.vocab_size, ids);
  add_labels(ids, masks_.empty() ? nullptr : masks_[file].data() + begin, batch);
  add_positions(ids, batch);
  batch.row_in_step.push_back(row_in_step);
  ++batch.rows;
}

// A label is the next token; the mask says which tokens are learned as labels. A filtered row has none, yet counts in
// full, as in the reference.
void Instances::add_labels(const int32_t* ids, const std::byte* mask, Batch& batch) const {
  const int64_t length = settings_.sequence_length;
  if (settings_.repetition_filter && repeats_too_often({ids, static_cast<size_t>(length)})) {
    batch.labels.insert(batch.labels.end(), static_cast<size_t>(length), kIgnored);
    batch.valid_labels += length - 1;
    ++batch.filtered_rows;
    return;
  }
  for (int64_t t = 1; t < length; ++t) {
    const bool learned = mask == nullptr || mask[t] != std::byte{0};
    batch.labels.push_back(learned ? ids[t] : kIgnored);
    batch.valid_labels += learned;
  }
  batch.labels.push_back(kIgnored);
}

// A document ends with its end-of-text token; the next one starts behind it.
void Instances::add_positions(const int32_t* ids, Batch& batch) const {
  int64_t start = 0;
  for (int64_t t = 0; t < settings_.sequence_length; ++t) {
    batch.positions.push_back(static_cast<int32_t>(t - start));
    if (!settings_.document_mask) continue;
    batch.document_start.push_back(static_cast<int32_t>(start));
    if (ids[t] == settings_.eos) start = t + 1;
  }
}

}  // namespace olmo
