/* path.c - what may be written over, and the folders on the way to it. */
#include "core/path.h"
#include "test.h"
#include <sys/stat.h>
#include <unistd.h>

static ht_err e;

static const char *in_tmp(const char *name)
{
    static char ring[4][600];
    static unsigned at;
    char *p = ring[at++ % 4];
    snprintf(p, sizeof ring[0], "%s/%s", t_tmp(), name);
    return p;
}

T_CASE(path, a_new_name_and_a_file_are_targets)
{
    ht_path_target t;
    struct stat st;
    const char *p = in_tmp("file");
    T_OK(ht_path_target_of(&t, p, &e), e);
    T_TRUE(!t.there);
    T_EQ_STR(t.path, p);
    t_spit(p, "x", 1);
    T_OK(ht_path_target_of(&t, p, &e), e);
    T_EQ_INT(stat(p, &st), 0);
    T_TRUE(t.there);
    T_EQ_INT(t.ino, st.st_ino);
    T_EQ_INT(t.dev, st.st_dev);
}

T_CASE(path, links_are_followed)
{
    ht_path_target t;
    char real[4096];
    t_spit(in_tmp("end"), "x", 1);
    T_EQ_INT(symlink("end", in_tmp("middle")), 0);
    T_EQ_INT(symlink("middle", in_tmp("link")), 0);
    T_OK(ht_path_target_of(&t, in_tmp("link"), &e), e);
    T_TRUE(realpath(in_tmp("end"), real));
    T_EQ_STR(t.path, real);
    T_EQ_INT(symlink("nothing", in_tmp("lost")), 0);
    T_ERR(ht_path_target_of(&t, in_tmp("lost"), &e), HT_EARG, e, "leads nowhere");
}

T_CASE(path, only_regular_files_are_replaced)
{
    ht_path_target t;
    T_ERR(ht_path_target_of(&t, "/dev/full", &e), HT_EARG, e, "no regular file");
    T_ERR(ht_path_target_of(&t, t_tmp(), &e), HT_EARG, e, "a folder");
    T_EQ_INT(mkfifo(in_tmp("pipe"), 0600), 0);
    T_ERR(ht_path_target_of(&t, in_tmp("pipe"), &e), HT_EARG, e, "a pipe");
    T_EQ_INT(symlink("/dev/full", in_tmp("device")), 0);
    T_ERR(ht_path_target_of(&t, in_tmp("device"), &e), HT_EARG, e, "no regular file");
    T_ERR(ht_path_target_of(&t, "", &e), HT_EARG, e, "no path");
    t_spit(in_tmp("plain"), "x", 1);
    T_ERR(ht_path_target_of(&t, in_tmp("plain/under"), &e), HT_EIO, e, "cannot be examined");
}

T_CASE(path, every_missing_folder_is_made)
{
    struct stat st;
    const char *p = in_tmp("a/b/c/file");
    T_OK(ht_path_make_parents(p, 0700, &e), e);
    T_OK(ht_path_make_parents(p, 0700, &e), e);
    T_EQ_INT(stat(in_tmp("a/b/c"), &st), 0);
    T_EQ_INT(st.st_mode & 0777, 0700);
    T_TRUE(stat(p, &st) != 0);
    T_OK(ht_path_make_parents("no-folder", 0700, &e), e);
    t_spit(in_tmp("blocked"), "x", 1);
    T_ERR(ht_path_make_parents(in_tmp("blocked/b/file"), 0700, &e), HT_EIO, e, "cannot be made");
}
