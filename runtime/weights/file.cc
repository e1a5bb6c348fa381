// SPDX-License-Identifier: Apache-2.0
#include "runtime/weights/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace baton {
namespace {

// Opening a FIFO must not wait for its writer.
constexpr int kOpenFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;

// An open file; closes itself.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  [[nodiscard]] int fd() const { return fd_; }

 private:
  int fd_;
};

Status FromErrno(const std::string& path, const char* doing) {
  const int error = errno;
  if (error == ENOENT || error == ENOTDIR) {
    return NotFound("{}: {}", path,
                    PathExists(path) ? "a link to a file that is not there"
                                     : "no such file");
  }
  return Internal("{}: {}: {}", path, doing, std::strerror(error));
}

// Size of a regular file.
StatusOr<int64_t> SizeOfFile(const Descriptor& file, const std::string& path) {
  if (file.fd() < 0) return FromErrno(path, "open");
  struct stat info = {};
  if (::fstat(file.fd(), &info) != 0) return FromErrno(path, "stat");
  if (!S_ISREG(info.st_mode)) return NotFound("{}: not a regular file", path);
  return static_cast<int64_t>(info.st_size);
}

}  // namespace

bool PathExists(const std::string& path) {
  struct stat info = {};
  return ::lstat(path.c_str(), &info) == 0;
}

StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  const Descriptor file(::open(path.c_str(), kOpenFlags));
  BATON_ASSIGN_OR_RETURN(const int64_t size, SizeOfFile(file, path));
  if (size == 0) return MappedFile({});  // an empty mapping is an error
  void* data =
      ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.fd(), /*offset=*/0);
  if (data == MAP_FAILED) return FromErrno(path, "mmap");
  ::madvise(data, size, MADV_SEQUENTIAL);  // loading reads front to back, once
  return MappedFile(
      {static_cast<const std::byte*>(data), static_cast<size_t>(size)});
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) {
    ::munmap(const_cast<std::byte*>(bytes_.data()),  // NOLINT: munmap's type
             bytes_.size());
  }
}

void DropMappedPages(std::span<const std::byte> bytes) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto start = reinterpret_cast<uintptr_t>(bytes.data());
  const uintptr_t first = (start + page - 1) / page * page;
  const uintptr_t last = (start + bytes.size()) / page * page;
  if (first >= last) return;
  ::madvise(reinterpret_cast<void*>(first), last - first,  // NOLINT
            MADV_DONTNEED);
}

StatusOr<std::string> ReadFile(const std::string& path, int64_t max_bytes) {
  const Descriptor file(::open(path.c_str(), kOpenFlags));
  BATON_ASSIGN_OR_RETURN(const int64_t size, SizeOfFile(file, path));
  if (size > max_bytes) {
    return InvalidArgument("{}: {} bytes, at most {} are read", path, size,
                           max_bytes);
  }
  std::string text(size, '\0');
  int64_t have = 0;
  while (have < size) {
    const ssize_t got = ::read(file.fd(), text.data() + have, size - have);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FromErrno(path, "read");
    if (got == 0) break;  // it shrank meanwhile: hand out what there is
    have += got;
  }
  text.resize(have);
  return text;
}

}  // namespace baton
