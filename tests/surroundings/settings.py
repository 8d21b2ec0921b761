"""Tables of git settings that a user may have, each of which could change what git does or prints when tools ask it.

A value may hold {tmp}, the test's own folder: there lie a program `loud` that leaves a trace and fails, templates with
hooks, and files of attributes and of ignored names.
"""

from __future__ import annotations

from pathlib import Path

# What the issue that asked for this names; each gets a round of its own.
NAMED = {
    "commits are signed, with no key": ["commit.gpgSign=true", "tag.gpgSign=true", "gpg.program=false"],
    "hooks that fail": ["core.hooksPath={tmp}/hooks"],
    "line ends are converted": ["core.autocrlf=true", "core.eol=crlf", "core.safecrlf=true"],
    "white space is mended": ["apply.whitespace=fix", "core.whitespace=tab-in-indent,cr-at-eol,tabwidth=3"],
    "diffs have no prefix": ["diff.noprefix=true", "format.noprefix=true", "diff.mnemonicPrefix=true"],
    "an external diff": ["diff.external={tmp}/loud", "diff.odd.textconv={tmp}/loud", "diff.odd.command={tmp}/loud"],
    "a merge driver": ["merge.default=odd", "merge.odd.driver={tmp}/loud %O %A %B", "merge.odd.recursive=binary"],
    "a file system monitor": ["core.fsmonitor={tmp}/loud", "core.untrackedCache=true", "core.fsmonitorHookVersion=2"],
    "commits in another encoding": ["i18n.commitEncoding=ISO-8859-1", "i18n.logOutputEncoding=UTF-16"],
    "a commit template": ["commit.template={tmp}/none", "commit.cleanup=strip", "core.commentChar=t"],
    "attributes for every file": ["core.attributesFile={tmp}/attributes", "filter.odd.clean={tmp}/loud",
                                  "filter.odd.smudge={tmp}/loud", "filter.odd.required=true"],
    "no name may be guessed": ["user.useConfigOnly=true"],
    "an index of another form": ["feature.manyFiles=true", "index.version=4", "index.threads=4", "index.sparse=true",
                                 "index.skipHash=true", "core.preloadIndex=true"],
    "a split index that forgets at once": ["core.splitIndex=true", "splitIndex.sharedIndexExpire=now",
                                           "splitIndex.maxPercentChange=100"],
    "bare repositories are refused": ["safe.bareRepository=explicit"],
    "no branch can be born": ["init.defaultBranch=no..name", "init.templateDir={tmp}/template"],
}  # fmt: skip
# The rest, by what they are about.
GROUPS = {
    "colours and pages": [
        "color.ui=always", "color.diff=always", "color.branch=always", "color.status=always", "color.pager=true",
        "color.advice=always", "color.push=always", "color.remote=always", "color.transport=always",
        "color.diff.old=blink", "core.pager=false", "pager.log=true", "pager.diff=true", "pager.config=true",
        "pager.branch=true", "pager.for-each-ref=true", "pager.cat-file=true", "column.ui=always",
        "column.status=always", "core.editor=false", "sequence.editor=false", "core.askPass=false", "help.format=web",
    ],
    "aliases and other files": [
        "alias.log=!{tmp}/loud", "alias.fast-import=!{tmp}/loud", "alias.cat-file=!{tmp}/loud", "alias.fetch=!false",
        "alias.update-index=!{tmp}/loud", "include.path={tmp}/none", "includeIf.gitdir:/.path={tmp}/none",
        "help.autoCorrect=immediate", "core.excludesFile={tmp}/ignored",
    ],
    "names and files": [
        "core.logAllRefUpdates=false",
        "core.abbrev=4", "core.quotePath=false", "core.precomposeUnicode=true", "core.protectNTFS=true",
        "core.protectHFS=true", "core.ignoreCase=true", "core.fileMode=false", "core.symlinks=false",
        "core.trustctime=false", "core.checkStat=minimal", "core.warnAmbiguousRefs=false", "core.disambiguate=blob",
        "core.sharedRepository=0660", "core.createObject=rename", "core.useReplaceRefs=true", "core.bigFileThreshold=1",
        "core.fsync=none", "core.fsyncMethod=batch", "core.notesRef=refs/notes/none", "core.preferSymlinkRefs=false",
        "core.filesRefLockTimeout=0", "core.packedRefsTimeout=0", "core.checkRoundtripEncoding=UTF-8",
        "core.compression=9", "core.looseCompression=9", "core.packedGitWindowSize=1", "core.deltaBaseCacheLimit=1",
    ],
    "sparse and graphs": [
        "core.sparseCheckout=true", "core.sparseCheckoutCone=false", "sparse.expectFilesOutsideOfPatterns=true",
        "core.commitGraph=true", "core.multiPackIndex=true", "commitGraph.generationVersion=1",
        "commitGraph.readChangedPaths=true", "commitGraph.maxNewFilters=1", "fetch.writeCommitGraph=true",
        "feature.experimental=true", "pack.readReverseIndex=false", "pack.useSparse=false",
    ],
    "diffs": [
        "diff.algorithm=histogram", "diff.context=0", "diff.interHunkContext=30", "diff.indentHeuristic=true",
        "diff.renames=copies", "diff.renameLimit=1", "diff.relative=true", "diff.ignoreSubmodules=all",
        "diff.suppressBlankEmpty=true", "diff.submodule=log", "diff.srcPrefix=old/", "diff.dstPrefix=new/",
        "diff.wordRegex=.", "diff.wsErrorHighlight=all", "diff.colorMoved=zebra", "diff.colorMovedWS=ignore-all-space",
        "diff.dirstat=files", "diff.statGraphWidth=3", "diff.statNameWidth=3", "diff.autoRefreshIndex=false",
        "diff.trustExitCode=true", "diff.tool=false", "diff.guitool=false", "diff.orderFile={tmp}/order",
    ],
    "mails": [
        "format.attach=bound", "format.cc=x@y", "format.coverLetter=true", "format.coverFromDescription=subject",
        "format.encodeEmailHeaders=true", "format.filenameMaxLength=1", "format.forceInBodyFrom=true",
        "format.from=true", "format.headers=X-One:1", "format.mboxrd=true", "format.notes=true",
        "format.numbered=true", "format.outputDirectory={tmp}/out", "format.pretty=oneline", "format.signOff=true",
        "format.signature=Ann", "format.signatureFile=/etc/hostname", "format.subjectPrefix=FOO",
        "format.suffix=.txt", "format.thread=deep", "format.to=x@y", "format.useAutoBase=true",
    ],
    "histories": [
        "log.abbrevCommit=true", "log.date=relative", "log.decorate=full", "log.diffMerges=on", "log.follow=true",
        "log.mailmap=true", "log.showRoot=false", "log.showSignature=true", "log.graphColors=red",
        "log.excludeDecoration=*", "log.initialDecorationSet=all", "mailmap.file={tmp}/mailmap",
        "mailmap.blob=HEAD:README.md", "notes.displayRef=*", "notes.rewriteRef=*", "notes.rewriteMode=overwrite",
        "status.branch=true", "status.short=true", "status.relativePaths=false", "status.showUntrackedFiles=no",
        "status.submoduleSummary=true", "status.renames=copies", "tag.sort=-version:refname", "branch.sort=-objectname",
        "versionsort.suffix=-rc", "rerere.enabled=true", "blame.ignoreRevsFile={tmp}/none", "stash.showPatch=true",
    ],
    "fetching": [
        "protocol.allow=never", "protocol.file.allow=always", "fetch.fsckObjects=true", "transfer.fsckObjects=true",
        "receive.fsckObjects=true", "fetch.prune=true",
        "fetch.pruneTags=true", "fetch.recurseSubmodules=true", "fetch.parallel=8", "fetch.output=compact",
        "fetch.unpackLimit=1", "transfer.unpackLimit=1", "fetch.negotiationAlgorithm=noop", "fetch.all=true",
        "fetch.showForcedUpdates=false", "transfer.hideRefs=refs", "uploadpack.hideRefs=refs",
        "uploadpack.allowAnySHA1InWant=false", "transfer.advertiseSID=true", "transfer.credentialsInUrl=die",
        "protocol.version=0", "url.https://example.invalid/.insteadOf=https://github.com/",
        "url.ssh://example.invalid/.pushInsteadOf=/", "credential.helper=!{tmp}/loud", "core.sshCommand={tmp}/loud",
        "core.gitProxy={tmp}/loud", "http.proxy=http://127.0.0.1:1", "remote.origin.prune=true",
        "remote.pushDefault=none", "receive.denyCurrentBranch=refuse", "receive.denyNonFastForwards=true",
        "push.default=nothing", "bundle.heuristic=creationToken", "clone.defaultRemoteName=elsewhere",
        "clone.rejectShallow=true", "clone.filterSubmodules=true",
    ],
    "packs and upkeep": [
        "fastimport.unpackLimit=1000", "pack.compression=9", "pack.indexVersion=1", "pack.packSizeLimit=1",
        "pack.depth=1", "pack.window=0", "pack.threads=7", "pack.writeReverseIndex=true", "pack.island=refs/(.*)",
        "gc.auto=1", "gc.autoPackLimit=1", "gc.autoDetach=false", "gc.pruneExpire=now", "gc.reflogExpire=now",
        "gc.writeCommitGraph=true", "maintenance.auto=true", "maintenance.strategy=incremental",
        "repack.writeBitmaps=true", "receive.autogc=true", "tar.umask=0",
    ],
    "checking out": [
        "checkout.defaultRemote=none", "checkout.guess=false", "checkout.workers=4",
        "checkout.thresholdForParallelism=1", "submodule.recurse=true", "submodule.propagateBranches=true",
        "submodule.active=.", "submodule.fetchJobs=8", "advice.detachedHead=true", "advice.statusHints=true",
        "advice.objectNameWarning=true", "advice.updateSparsePath=true", "branch.autoSetupMerge=always",
        "branch.autoSetupRebase=always", "push.autoSetupRemote=true", "pull.rebase=true", "rebase.autoStash=true",
        "merge.ff=only", "merge.renames=false", "merge.conflictStyle=diff3", "merge.verifySignatures=true",
        "rebase.updateRefs=true", "worktree.guessRemote=true", "init.defaultObjectFormat=sha256",
        "init.defaultRefFormat=reftable", "extensions.worktreeConfig=true", "extensions.objectFormat=sha256",
        "trace2.normalTarget={tmp}/trace", "trace2.perfTarget=1", "trace2.eventTarget=1", "trace2.configParams=*",
        "user.name=", "user.email=", "author.name=Nobody", "committer.email=no@body", "user.signingKey=none",
    ],
}  # fmt: skip
EVERYTHING = [setting for group in (*NAMED.values(), *GROUPS.values()) for setting in group]
# Of a repository's own file git refuses these, or takes them for another repository than it is.
ONLY_GLOBAL = ("extensions.objectFormat", "extensions.worktreeConfig")
# Every GIT_* variable there is, as far as git's documentation and sources tell.
VARIABLES = tuple(
    line for line in Path(__file__).with_name("git_variables.txt").read_text().splitlines() if not line.startswith("#")
)
