#include "texts.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "driver.h"
#include "nvrtc.h"
#include "sources.h"

namespace echo_cuda {
namespace {

// The last line of a file shows that it is whole.
const std::string_view kLastLine = "// end\n";

std::vector<std::string> folders() {
  std::istringstream all(places().ptx);
  std::vector<std::string> found;
  for (std::string each; std::getline(all, each, ':');) found.push_back(each);
  return found;
}

// Bytes of an open regular file, which `own` has to be the user's, and writable by no other; -1 otherwise. By statx:
// fstat is of glibc 2.33.
long long size_of(int file, bool own) {
  struct statx about = {};
  const unsigned wanted = STATX_TYPE | STATX_MODE | STATX_UID | STATX_SIZE;
  if (statx(file, "", AT_EMPTY_PATH, wanted, &about) != 0 || !S_ISREG(about.stx_mode)) return -1;
  if (own && (about.stx_uid != geteuid() || (about.stx_mode & 022) != 0)) return -1;
  return static_cast<long long>(about.stx_size);
}

// The content of such a file; empty if there is none.
std::string read(const std::string& path, bool own) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return "";
  const long long size = size_of(file, own);
  std::string content(size > 0 ? static_cast<size_t>(size) : 0, '\0');
  size_t got = 0;
  for (ssize_t more = 1; got < content.size() && more > 0; got += more > 0 ? more : 0) {
    more = ::read(file, &content[got], content.size() - got);
  }
  content.resize(got);
  close(file);
  return content;
}

bool make_folder(const std::string& path) {
  if (mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return true;
  const size_t slash = path.rfind('/');
  return errno == ENOENT && slash != std::string::npos && slash > 0 && make_folder(path.substr(0, slash)) &&
         (mkdir(path.c_str(), 0700) == 0 || errno == EEXIST);
}

// In one step: a reader sees the whole file or none.
bool write(const std::string& folder, const std::string& name, const std::string& content) {
  std::string path = folder + "/" + name + ".XXXXXX";
  const int file = make_folder(folder) ? mkstemp(&path[0]) : -1;
  if (file < 0) return false;
  size_t put = 0;
  for (ssize_t more = 1; put < content.size() && more > 0; put += more > 0 ? more : 0) {
    more = ::write(file, content.data() + put, content.size() - put);
  }
  const bool done = close(file) == 0 && put == content.size() &&
                    rename(path.c_str(), (folder + "/" + name).c_str()) == 0;
  if (!done) unlink(path.c_str());
  return done;
}

bool is_whole(const std::string& content) {
  return content.size() > kLastLine.size() &&
         content.compare(content.size() - kLastLine.size(), kLastLine.size(), kLastLine) == 0;
}

std::string found_or_compiled(const std::string& family) {
  const std::vector<std::string> all = folders();
  for (const std::string& folder : all) {
    std::string content = read(folder + "/" + file_of(family), &folder == &all.back());
    if (is_whole(content)) return content;
  }
  std::string content = compiled(family).append(kLastLine);
  if (!all.empty()) write(all.back(), file_of(family), content);  // if that fails, the next process compiles again
  return content;
}

struct Texts {
  std::mutex mutex;
  std::string all;  // empty: not there yet
  std::string_view head;  // version, target, and what all kernels declare
  std::unordered_map<std::string, std::string_view> kernels;
};

// Kernels stand one after the other, and declare what they alone have inside of them.
void split(Texts* texts) {
  constexpr std::string_view entry = "\n.visible .entry ";
  const std::string_view all(texts->all);
  std::size_t at = all.find(entry);
  texts->head = all.substr(0, at);
  while (at != std::string_view::npos) {
    const std::size_t end = all.find(entry, at + 1), name = at + entry.size();
    texts->kernels.emplace(all.substr(name, all.find('(', name) - name), all.substr(at, end - at));
    at = end;
  }
}

Texts& texts_of(const std::string& family) {
  static std::mutex mutex;
  static auto& all = *new std::map<std::string, std::unique_ptr<Texts>>;
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<Texts>& found = all[family];
  if (found == nullptr) found.reset(new Texts);
  return *found;
}

}  // namespace

std::string file_of(const std::string& family) { return family + "-" + sources_digest() + ".ptx"; }

void put_ptx(const std::string& family, const std::string& folder) {
  if (is_whole(read(folder + "/" + file_of(family), false))) return;
  if (!write(folder, file_of(family), compiled(family).append(kLastLine))) {
    throw DeviceError(folder + ": PTX cannot be written there: " + std::strerror(errno));
  }
}

std::string text_of(const std::string& kernel) {
  const std::string& family = family_of(kernel);
  if (family.empty()) throw DeviceError("no file of CUDA kernels names " + kernel);
  Texts& texts = texts_of(family);
  const std::lock_guard<std::mutex> lock(texts.mutex);  // who needs another family does not wait
  if (texts.all.empty()) {
    texts.all = found_or_compiled(family);
    split(&texts);
  }
  const auto found = texts.kernels.find(kernel);
  if (found == texts.kernels.end()) throw DeviceError(kernel + " is not in the PTX of its family, " + family);
  std::string text(texts.head);
  return text.append(found->second).append("\n");
}

}  // namespace echo_cuda
